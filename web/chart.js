// What all charts share: rule toggles, a choice of what to show, redrawing to the width there is, values on hover and by arrow
// keys.
//
// A chart's draw(stage) adds its marks to stage.svg and calls stage.spot(x, y, title, rows, more) for each thing that can be
// pointed at. Of more, `pick` is what a click or Enter does there; of a bar that ends there `bar` is {half: half its width,
// base: where it begins}; in a map `half` is half the width and height of its cell, and
// `line` the line it stands in, so that up and down go there.

/// By data.experiment: data → {figure, below: [nodes], formula: a name if not the experiment's, wide: the chart wants all the
/// width}.
const experiments = {};

function key_of(style) {
  const svg = d3.create("svg").attr("width", 26).attr("height", 14).attr("aria-hidden", "true");
  svg.append("line")
      .attr("x1", 0)
      .attr("x2", 26)
      .attr("y1", 7)
      .attr("y2", 7)
      .attr("stroke", style.colour)
      .attr("stroke-width", 2)
      .attr("stroke-dasharray", style.dash);
  svg.append("path")
      .attr("d", d3.symbol().type(style.symbol).size(52)())
      .attr("transform", "translate(13,7)")
      .attr("fill", style.colour);
  return svg.node();
}

let charts_made = 0;
const kMostDescribed = 60;  // values that are read out with a figure; the rest is in its table

/// What there is to say of something that can be pointed at: rows, or for a figure with thousands a function that makes them
/// when somebody points there.
const rows_of = ({rows}) => (typeof rows === "function" ? rows() : rows);
const words_of = ({title}, rows) => `${title}: ${
    rows.map(([name, v]) => `${name} ${v instanceof Node ? v.textContent : isRef(v) ? number(v.value) : v}`).join(", ")}`;
/// The values of a chart as text: of each thing in it the first.
function described(spots) {
  const first = spots.slice(0, kMostDescribed).map((s) => words_of(s, rows_of(s).slice(0, 1)));
  const more = spots.length - first.length;
  return `${first.join("; ")}${more > 0 ? `; and ${grouped(String(more))} more` : ""}.`;
}

/// How much larger than a browser's 16 pixels text is set: charts are drawn for 16, and scaled.
const zoom_of = (node) => parseFloat(getComputedStyle(node.ownerDocument.documentElement).fontSize) / 16 || 1;

/// label: what it shows, for those who cannot see it. series: [{id, label, style}] that can be switched off. choices: {name:
/// [{id, label}]}, each a menu that begins with the one that is `first`. caption: nodes or text. Label and caption may be
/// functions, asked whenever it is drawn; the figure's redraw() draws it again, for what it shows may have changed.
///
/// Who cannot see it hears the label, then the values in it, and reads them one by one with the arrow keys.
function chart({label, series = [], choices = {}, caption, draw}) {
  const hidden = new Set();
  const chosen = {};
  const controls = el("div", {class: "controls", role: "group", "aria-label": "What the chart shows"});
  for (const one of series) {
    const button =
        el("button", {type: "button", "aria-pressed": "true", "data-series": one.id}, key_of(one.style),
           el("span", {}, one.label));
    button.addEventListener("click", () => {
      if (hidden.has(one.id))
        hidden.delete(one.id);
      else if (hidden.size + 1 < series.length)
        hidden.add(one.id);  // something always stays
      button.setAttribute("aria-pressed", String(!hidden.has(one.id)));
      redraw();
    });
    controls.append(button);
  }
  for (const [name, options] of Object.entries(choices)) {
    chosen[name] = (options.find((o) => o.first) || options[0]).id;
    const select = el("select", {}, options.map((o) => Object.assign(el("option", {value: o.id}), {textContent: o.label})));
    select.value = chosen[name];
    select.addEventListener("change", () => {
      chosen[name] = select.value;
      redraw();
    });
    controls.append(el("label", {}, name, select));
  }

  const canvas = el("div", {
    class: "canvas",
    tabindex: 0,
    role: "group",
    "aria-roledescription": "chart",
  });
  const said_of = (what) => (typeof what === "function" ? what() : what);
  const words = caption ? el("figcaption", {}) : null;
  const tip = el("div", {class: "tip", hidden: ""});
  const said = el("div", {class: "unseen", "aria-live": "polite"});
  const numbers = el("div", {class: "unseen", id: `chart-numbers-${++charts_made}`});
  canvas.setAttribute("aria-describedby", numbers.id);
  let spots = [], at = -1, width = 0;
  let seen = 0;  // the width it was drawn for, in pixels; until it has been in sight there is none

  function redraw() {
    if (!seen) return;
    const kept = document.activeElement === canvas && at >= 0 ? {at, title: spots[at].title} : null;
    hide();
    canvas.querySelectorAll("svg").forEach((old) => old.remove());
    spots = [];
    const spoken = said_of(label);
    canvas.setAttribute("aria-label", `${spoken} Arrow keys read out its values.`);
    if (words) words.replaceChildren(...el("p", {}, said_of(caption)).childNodes);
    const svg = d3.create("svg").attr("role", "img").attr("aria-label", spoken);
    const height = draw({
      svg,
      width,
      chosen,
      narrow: width < 400,
      visible: series.filter((one) => !hidden.has(one.id)),
      spot: (x, y, title, rows, more = {}) => spots.push({x, y, title, rows, ...more}),
    });
    numbers.textContent = described(spots);
    svg.attr("viewBox", `0 0 ${width} ${height}`).attr("width", width).attr("height", height);
    svg.append("path").attr("class", "ring").attr("visibility", "hidden");
    canvas.prepend(svg.node());
    // What was read out stays so, although others may have come before it.
    const same = (i) => i < spots.length && spots[i].title === kept.title;
    if (kept && spots.length) {
      const found = same(kept.at) ? kept.at : spots.findIndex((_, i) => same(i));
      show(found >= 0 ? found : Math.min(kept.at, spots.length - 1));
    }
  }

  function show(index) {
    at = index;
    const {x, y, title, half} = spots[index], rows = rows_of(spots[index]);
    const scale = canvas.clientWidth / width;
    tip.replaceChildren(
        el("strong", {}, title), el("dl", {}, rows.flatMap(([name, value]) => [el("dt", {}, name), el("dd", {}, value)])));
    tip.hidden = false;
    const box = tip.getBoundingClientRect();
    const left = Math.min(Math.max(0, x * scale - box.width / 2), Math.max(0, canvas.clientWidth - box.width));
    const above = y * scale - box.height - 14;
    tip.style.left = `${left}px`;
    tip.style.top = `${above > -40 ? above : y * scale + 16}px`;
    const ring = canvas.querySelector(".ring");
    ring.setAttribute("d", half ? `M${-half[0]},${-half[1]}h${2 * half[0]}v${2 * half[1]}h${-2 * half[0]}z` : "M9,0A9,9 0 1 1 9,-.01z");
    ring.setAttribute("transform", `translate(${x},${y})`);
    ring.setAttribute("visibility", "visible");
  }
  function hide() {
    at = -1;
    tip.hidden = true;
    const ring = canvas.querySelector(".ring");
    if (ring) ring.setAttribute("visibility", "hidden");
  }

  function point(event) {
    const box = canvas.getBoundingClientRect(), scale = width / box.width;
    const x = (event.clientX - box.left) * scale, y = (event.clientY - box.top) * scale;
    let best = -1, least = 48 * 48;
    spots.forEach((s, i) => {
      const inside = (s.half && Math.abs(s.x - x) <= s.half[0] && Math.abs(s.y - y) <= s.half[1]) ||
          (s.bar && Math.abs(s.x - x) <= s.bar.half && (s.y - y) * (s.bar.base - y) <= 0);
      const distance = inside ? 0 : (s.x - x) ** 2 + (s.y - y) ** 2;
      if (distance < least) [best, least] = [i, distance];
    });
    if (best < 0)
      hide();
    else if (best !== at)
      show(best);
  }
  /// Up and down in a map: the nearest in the next line; else the next or the one before.
  function next(step, across) {
    const here = spots[at];
    if (at < 0) return step > 0 ? 0 : spots.length - 1;
    if (across || here.line === undefined) return (at + step + spots.length) % spots.length;
    const lines = spots.filter((s) => s.line === here.line + step);
    const near = lines.reduce((a, b) => (!a || Math.abs(b.x - here.x) < Math.abs(a.x - here.x) ? b : a), null);
    return near ? spots.indexOf(near) : at;
  }
  canvas.addEventListener("pointermove", point);
  canvas.addEventListener("pointerdown", point);
  canvas.addEventListener("pointerleave", hide);
  canvas.addEventListener("blur", hide);
  canvas.addEventListener("keydown", (event) => {
    const step = {ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1}[event.key];
    if (event.key === "Escape") hide();
    if (event.key === "Enter" && at >= 0 && spots[at].pick) spots[at].pick();
    if (!step || !spots.length) return;
    event.preventDefault();
    show(next(step, event.key === "ArrowRight" || event.key === "ArrowLeft"));
    said.textContent = words_of(spots[at], rows_of(spots[at]));
  });

  canvas.addEventListener("click", (event) => {
    point(event);
    if (at >= 0 && spots[at].pick) spots[at].pick();
  });

  canvas.append(tip);
  const figure =
      el("figure", {class: "chart"}, controls.childElementCount ? controls : null, canvas, numbers, said, words);
  figure.fit = () => {
    if (Math.abs(canvas.clientWidth - seen) <= 1 || canvas.clientWidth === 0) return;
    seen = canvas.clientWidth;
    width = Math.max(240, seen / zoom_of(canvas));  // asked here alone: to ask makes the browser lay out what was drawn before
    redraw();
  };
  new ResizeObserver(figure.fit).observe(canvas);
  figure.redraw = redraw;
  /// Everything in it that can be pointed at, with all digits: for who wants its numbers, and there is no table of them.
  const all_digits = (v) => {
    if (!(v instanceof Node)) return isRef(v) ? v.value : v;
    const held = v.dataset.value === undefined ? v.querySelector("[data-value]") : v;
    return held ? held.dataset.value : v.textContent;
  };
  figure.values = () => ({
    columns: ["what", "quantity", "value"],
    rows: spots.flatMap((s) => rows_of(s).map(([name, value]) => [s.title, name, all_digits(value)]))
  });
  return figure;
}

/// Draws what has come into the document now, and not in the next frame, in which it would push away what is below.
const fit_charts = (root = document) => root.querySelectorAll("figure.chart").forEach((figure) => figure.fit());

/// The three rules (or those there are) as series.
const rule_series = (names) => unique(names).map((id) => ({id, label: style_of(id).label, style: style_of(id)}));

// Pieces of charts ----------------------------------------------------------------------------------------------------------

/// Marks what an element shows; its attribute or translation `channel` is where `scale` puts the value.
function mark(selection, reference, channel) {
  selection.classed("mark", true).attr("data-path", reference.path).attr("data-value", String(reference.value));
  if (channel) selection.attr("data-channel", channel);
  return selection;
}
/// A group whose marks stand on this scale: said in the document, so that marks can be checked against it.
function scaled(group, scale) {
  const [a, b] = scale.domain();
  return group.attr("data-scale", JSON.stringify({type: scale.base ? "log" : "linear", domain: [a, b], range: scale.range()}));
}

/// SVG text, with indices set low.
function label_text(selection, text) {
  let back = false;  // to the line from which an index went down
  for (const piece of pieces_of(text)) {
    const span = (words) => {
      const node = selection.append("tspan").text(words);
      if (back) node.attr("dy", "-0.19em");
      back = false;
      return node;
    };
    if (!piece.name) {
      span(piece.text || piece.number || piece.whole);
      continue;
    }
    if (piece.before) span(piece.before);
    span(piece.name).attr("font-style", "italic");
    selection.append("tspan").attr("dy", "0.25em").attr("font-size", "0.75em").text(piece.index);
    back = true;
  }
  return selection;
}

/// Numbers on one axis are written in one way: as decimals where all of them are short, else as powers of ten where they are.
function tick_format(ticks) {
  const power = (x) => Math.log10(Math.abs(x));
  const plain = ticks.every((x) => x === 0 || (power(x) > -4.5 && power(x) < 5.5));
  return (x) => {
    if (plain || x === 0 || x === 1) return exact(Number(x.toPrecision(6)));
    return Math.abs(power(x) - Math.round(power(x))) < 1e-9 ? `${x < 0 ? "−" : ""}10${superscript(Math.round(power(x)))}` :
                                                              powered(Number(x.toPrecision(3)).toExponential());
  };
}
/// How much room the numbers of an axis need at its left.
const room_for = (scale, most) => {
  const ticks = ticks_of(scale, most);
  return 14 + 6.6 * (d3.max(ticks.map(tick_format(ticks)), (text) => text.length) || 1);
};
const tick = (x) => tick_format([x])(x);
/// Powers of ten inside a logarithmic domain, few enough to read; more steps where there are hardly any, and never fewer than
/// two numbers.
function log_ticks(scale, most = 7) {
  const [a, b] = d3.extent(scale.domain()), low = Math.log10(a), high = Math.log10(b);
  const powers = d3.range(Math.ceil(low - 1e-9), Math.floor(high + 1e-9) + 1);
  if (powers.length >= 3) return powers.filter((p, i) => i % Math.ceil(powers.length / most) === 0).map((p) => 10 ** p);
  const steps = d3.range(Math.floor(low), Math.ceil(high) + 1).flatMap((p) => [1, 2, 5].map((m) => Number(`${m}e${p}`)));
  const inside = steps.filter((x) => x >= a * (1 - 1e-9) && x <= b * (1 + 1e-9));
  return inside.length > 1 ? inside : d3.ticks(a, b, Math.min(4, most));
}
const ticks_of = (scale, most) => (scale.base ? log_ticks(scale, most) : scale.ticks(most || 5));

function y_axis(g, scale, width, name, most, format) {
  const ticks = ticks_of(scale, most);
  g.append("g")
      .attr("class", "grid")
      .selectAll("line")
      .data(ticks)
      .join("line")
      .attr("x2", width)
      .attr("y1", scale)
      .attr("y2", scale);
  g.append("g")
      .attr("class", "axis")
      .call(d3.axisLeft(scale).tickValues(ticks).tickFormat(format || tick_format(ticks)).tickSize(0).tickPadding(6))
      .select(".domain")
      .remove();
  if (name)
    label_text(
        g.append("text").attr("class", "axis-name").attr("x", -8).attr("y", scale.range()[1] - 12).attr("text-anchor", "start"),
        name)
        .attr("transform", "translate(-34,0)");
}
/// A share on an axis whose marks are labelled in per cent.
const percent_tick = (x) => `${exact(Number((100 * x).toPrecision(6)))} %`;
/// Takes away numbers that would run into the one before; the last stays, and what is before it goes instead.
function thinned(axis, at, format) {
  const ticks = axis.selectAll(".tick").nodes().map((node) => {
    const x = at(node.__data__), wide = 6.8 * format(node.__data__).length + 6;
    return {text: node.querySelector("text"), from: x - wide / 2, to: x + wide / 2};
  });
  ticks.sort((a, b) => a.from - b.from);
  const last = ticks[ticks.length - 1];
  let free = -Infinity;
  for (const one of ticks) {
    if (one !== last && (one.from < free || one.to > last.from)) one.text.remove();
    else free = one.to;
  }
}
function x_axis(g, scale, height, name, {values, width, format} = {}) {
  format = format || tick_format((values || scale.domain()).filter(isNumber));
  const axis = d3.axisBottom(scale).tickSize(4).tickPadding(5).tickFormat(format);
  if (values) axis.tickValues(values);
  const drawn = g.append("g").attr("class", "axis").attr("transform", `translate(0,${height})`).call(axis);
  thinned(drawn, (x) => scale(x) + (scale.bandwidth ? scale.bandwidth() / 2 : 0), format);
  if (name)
    label_text(
        g.append("text").attr("class", "axis-name").attr("x", width).attr("y", height + 34).attr("text-anchor", "end"), name);
}

/// A rule's symbol at (x, y).
const symbol = (g, style, x, y, size = 64) => g.append("path")
                                                  .attr("d", d3.symbol().type(style.symbol).size(size)())
                                                  .attr("transform", `translate(${x},${y})`)
                                                  .attr("fill", style.colour);

/// Panels side by side, or under each other where it is narrow.
function panels(count, {width, least = 230, gap = 28}) {
  const columns = Math.max(1, Math.min(count, Math.floor((width + gap) / (least + gap))));
  const each = (width - gap * (columns - 1)) / columns;
  return {columns, rows: Math.ceil(count / columns), each, at: (i) => [(i % columns) * (each + gap), Math.floor(i / columns)]};
}
const extent = (values) => d3.extent(values.filter(isNumber));

/// Heights at which labels stand at least so far from each other, each as near as it can be to where it belongs.
function apart(wanted, least, low, high) {
  const order = wanted.map((y, i) => [y, i]).sort((a, b) => a[0] - b[0]), out = [];
  let free = low;
  for (const [y, i] of order) {
    out[i] = Math.max(y, free);
    free = out[i] + least;
  }
  let most = high;
  for (const [, i] of order.reverse()) {
    out[i] = Math.min(out[i], most);
    most = out[i] - least;
  }
  return out;
}
