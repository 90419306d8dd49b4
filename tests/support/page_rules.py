"""What every page of ours keeps to, asked of it in the browser: each rule is JavaScript that lists what breaks it.

Used with chromium.Browser.run and with Playwright's page.evaluate alike: `broken(run)`.
"""

# Boxes of what is visible, a pixel of room taken off: neighbours may touch.
_BOXES = """
const box = (e) => { const b = e.getBoundingClientRect(); return {l: b.left + 1, r: b.right - 1, t: b.top + 1, b: b.bottom - 1}; };
const meet = (a, b) => a.l < b.r && b.l < a.r && a.t < b.b && b.t < a.b;
const seen = (e) => { const b = e.getBoundingClientRect(); return b.width > 2 && b.height > 2 && getComputedStyle(e).visibility !== 'hidden'; };
"""

LABELS_APART = (
    """(() => {"""
    + _BOXES
    + """
  // In a chart no label lies on another or on a mark. A number inside its own cell of a heat map (.in-cell) is no label beside it;
  // lines and long paths have no box that says where they are.
  const out = [];
  for (const svg of document.querySelectorAll('figure.chart svg')) {
    if (svg.closest('button') || !seen(svg)) continue;
    const labels = [...svg.querySelectorAll('text')].filter((t) => t.textContent.trim() && seen(t));
    const boxes = labels.map((t) => [t, box(t)]);
    const marks = [...svg.querySelectorAll('rect.mark, circle.mark, path.mark[transform], path.predicted-mark, rect.cell')].filter(seen).map((m) => [m, box(m)]);
    boxes.forEach(([a, x], i) => {
      const near = {...x, l: x.l - 3, r: x.r + 3};  // words that touch read as one
      for (const [b, y] of boxes.slice(i + 1)) if (meet(near, y)) out.push(`"${a.textContent}" and "${b.textContent}"`);
      if (!a.classList.contains('in-cell'))
        for (const [m, y] of marks) if (meet(x, y)) out.push(`"${a.textContent}" on the mark of ${m.dataset.path || m.getAttribute('class')}`);
    });
  }
  return out;
})()"""
)

INSIDE = """(() => {
  // Nothing of a chart is cut off at the sides of the page; the page does not scroll sideways.
  const wide = document.documentElement.clientWidth, out = [];
  if (document.documentElement.scrollWidth > wide) out.push(`the page is ${document.documentElement.scrollWidth} wide`);
  for (const e of document.querySelectorAll('figure.chart svg text, figure.chart svg rect')) {
    const b = e.getBoundingClientRect();
    if (b.width && (b.left < -0.5 || b.right > wide + 0.5)) out.push(`"${e.textContent || e.dataset.path}" ends at ${b.right}`);
  }
  return out;
})()"""

NUMBERS = """(() => {
  // 8.6×10⁻¹⁸ and 1/√d_k, wherever a person reads; what one types (code, names of rules with their numbers) is as it is typed.
  const out = [], walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let n = walk.nextNode(); n; n = walk.nextNode()) {
    if (n.parentElement.closest('script, style, code, pre, textarea')) continue;
    const bad = n.textContent.match(/(?<![\\w(.])\\d+(\\.\\d+)?e[-+]?\\d+(?!\\w)|sqrt\\(|NaN(?! or )|undefined|\\[object/);
    if (bad) out.push(n.textContent.slice(Math.max(0, bad.index - 30), bad.index + 40));
  }
  return out;
})()"""

NAMES = """(() => {
  // Whatever can be reached or is a picture has a name; ids are used once; headings go down by one.
  const out = [], name = (e) => (e.getAttribute('aria-label') || (e.labels && [...e.labels].map((l) => l.textContent).join(' ')) ||
    (e.getAttribute('aria-labelledby') && e.getAttribute('aria-labelledby').split(' ').map((id) => (document.getElementById(id) || {}).textContent).join(' ')) ||
    (e.closest('label') || {}).textContent || e.textContent || e.getAttribute('title') || '').trim();
  for (const e of document.querySelectorAll('a, button, select, input, textarea, summary, [tabindex], [role], section, nav, canvas, math'))
    if (!['presentation', 'none', 'note', 'alert', 'status'].includes(e.getAttribute('role')) && !e.hidden && !name(e)) out.push(e.outerHTML.slice(0, 90));
  for (const e of document.querySelectorAll('svg')) if (!e.closest('[aria-hidden=true]') && !e.getAttribute('aria-label')) out.push(e.outerHTML.slice(0, 90));
  const ids = [...document.querySelectorAll('[id]')].map((e) => e.id);
  ids.filter((id, i) => ids.indexOf(id) !== i).forEach((id) => out.push(`id ${id} twice`));
  for (const e of document.querySelectorAll('[aria-describedby], [aria-controls], [aria-labelledby]'))
    for (const attribute of ['aria-describedby', 'aria-controls', 'aria-labelledby'])
      for (const id of (e.getAttribute(attribute) || '').split(' ').filter(Boolean)) if (!document.getElementById(id)) out.push(`${attribute} ${id}`);
  // Figures have their numbers as text.
  for (const f of document.querySelectorAll('figure.chart .canvas'))
    if (f.querySelector('.mark') && !/\\d/.test((document.getElementById(f.getAttribute('aria-describedby')) || {}).textContent || '')) out.push('a figure without numbers: ' + f.getAttribute('aria-label'));
  let last = 1;
  for (const h of document.querySelectorAll('h1, h2, h3, h4')) {
    if (!h.getClientRects().length) continue;
    const level = Number(h.tagName[1]);
    if (level > last + 1) out.push(`h${level} after h${last}: ${h.textContent}`);
    last = level;
  }
  return out;
})()"""

CONTRAST = """(() => {
  // WCAG AA: 4.5 to 1, 3 to 1 for large text. Behind a text is the nearest ancestor with a colour of its own, and in a heat map the cell.
  const channel = (c) => ((c /= 255) <= .04045 ? c / 12.92 : ((c + .055) / 1.055) ** 2.4);
  const paint = document.createElement('canvas').getContext('2d', {willReadFrequently: true});
  const once = (make, kept = new Map()) => (key) => { if (!kept.has(key)) kept.set(key, make(key)); return kept.get(key); };
  const rgba = once((css) => { paint.clearRect(0, 0, 1, 1); paint.fillStyle = '#000'; paint.fillStyle = css; paint.fillRect(0, 0, 1, 1); return [...paint.getImageData(0, 0, 1, 1).data]; });
  const light = ([r, g, b]) => .2126 * channel(r) + .7152 * channel(g) + .0722 * channel(b);
  const over = (a, b) => { const p = a[3] / 255; return [0, 1, 2].map((i) => a[i] * p + b[i] * (1 - p)); };
  const behind = once((e) => {
    const c = rgba(getComputedStyle(e).backgroundColor);
    return c[3] === 255 ? c.slice(0, 3) : over(c, e.parentElement ? behind(e.parentElement) : [255, 255, 255]);
  });
  const out = new Set(), walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let n = walk.nextNode(); n; n = walk.nextNode()) {
    const e = n.parentElement, style = getComputedStyle(e);
    if (!n.textContent.trim() || e.closest('script, style, .unseen, [hidden], option, noscript') || !e.getClientRects().length || style.visibility === 'hidden') continue;
    if (e.closest('button:disabled, .dimmed')) continue;
    const svg = e.closest('svg'), in_cell = e.closest('.in-cell');
    let back = behind(svg ? svg.parentElement : e);
    if (in_cell) {
      const b = in_cell.getBoundingClientRect(), x = (b.left + b.right) / 2, y = (b.top + b.bottom) / 2;
      const cell = [...svg.querySelectorAll('rect.cell, rect.mapped')].find((r) => { const q = r.getBoundingClientRect(); return q.left <= x && x <= q.right && q.top <= y && y <= q.bottom; });
      if (cell) back = rgba(getComputedStyle(cell).fill);
    }
    const front = over(rgba(svg ? style.fill : style.color), back), a = light(front), b = light(back);
    const ratio = (Math.max(a, b) + .05) / (Math.min(a, b) + .05), size = parseFloat(style.fontSize);
    if (ratio < (size >= 24 || (size >= 18.66 && Number(style.fontWeight) >= 700) ? 3 : 4.5))
      out.add(`${ratio.toFixed(2)}: "${n.textContent.trim().slice(0, 40)}" in ${e.tagName.toLowerCase()}.${e.getAttribute('class') || ''}`);
  }
  return [...out];
})()"""

RULES = {"labels apart": LABELS_APART, "inside": INSIDE, "numbers": NUMBERS, "names": NAMES, "contrast": CONTRAST}


def broken(run, rules=RULES):
    """What breaks a rule, as lines. run: JavaScript → its value."""
    return [f"{name}: {one}" for name, script in rules.items() for one in run(script)[:12]]


SHIFT = """new Promise((done) => {
  // How far things moved by themselves while the page came up (Chromium's layout-shift score).
  let sum = 0;
  new PerformanceObserver((list) => { for (const entry of list.getEntries()) if (!entry.hadRecentInput) sum += entry.value; })
      .observe({type: 'layout-shift', buffered: true});
  setTimeout(() => done(sum), 300);
})"""
