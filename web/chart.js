// What all charts share: rule toggles, a choice of what to show, redrawing to the width there is, values on hover and by arrow
// keys.
//
// A chart's draw(stage) adds its marks to stage.svg and calls stage.spot(x, y, title, rows) for each thing that can be pointed
// at.

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

/// label: what it shows, for those who cannot see it. series: [{id, label, style}] that can be switched off. choices: {name:
/// [{id, label}]}, each a menu that begins with the one that is `first`. caption: nodes or text.
function chart({label, series = [], choices = {}, caption, draw}) {
  const hidden = new Set();
  const chosen = {};
  const controls = el("div", {class: "controls", role: "group", "aria-label": "What the chart shows"});
  for (const one of series) {
    const button = el("button", {type: "button", "aria-pressed": "true"}, key_of(one.style), el("span", {}, one.label));
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
    const select = el("select", {}, options.map((o) => el("option", {value: o.id}, o.label)));
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
    "aria-label": `${label} Left and right arrow keys read out its values; they are in the tables below as well.`
  });
  const tip = el("div", {class: "tip", hidden: ""});
  const said = el("div", {class: "unseen", "aria-live": "polite"});
  let spots = [], at = -1, width = 0;

  function redraw() {
    width = Math.max(240, canvas.clientWidth);
    hide();
    canvas.querySelectorAll("svg").forEach((old) => old.remove());
    spots = [];
    const svg = d3.create("svg").attr("role", "img").attr("aria-label", label);
    const height = draw({
      svg,
      width,
      chosen,
      narrow: width < 400,
      visible: series.filter((one) => !hidden.has(one.id)),
      spot: (x, y, title, rows) => spots.push({x, y, title, rows}),
    });
    svg.attr("viewBox", `0 0 ${width} ${height}`).attr("width", width).attr("height", height);
    svg.append("circle").attr("class", "ring").attr("r", 9).attr("visibility", "hidden");
    canvas.prepend(svg.node());
  }

  function show(index) {
    at = index;
    const {x, y, title, rows} = spots[index];
    const scale = canvas.clientWidth / width;
    tip.replaceChildren(
        el("strong", {}, title), el("dl", {}, rows.flatMap(([name, value]) => [el("dt", {}, name), el("dd", {}, value)])));
    tip.hidden = false;
    const box = tip.getBoundingClientRect();
    const left = Math.min(Math.max(0, x * scale - box.width / 2), Math.max(0, canvas.clientWidth - box.width));
    const above = y * scale - box.height - 14;
    tip.style.left = `${left}px`;
    tip.style.top = `${above > -40 ? above : y * scale + 16}px`;
    canvas.querySelector(".ring").setAttribute("transform", `translate(${x},${y})`);
    canvas.querySelector(".ring").setAttribute("visibility", "visible");
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
      const distance = (s.x - x) ** 2 + (s.y - y) ** 2;
      if (distance < least) [best, least] = [i, distance];
    });
    if (best < 0)
      hide();
    else if (best !== at)
      show(best);
  }
  canvas.addEventListener("pointermove", point);
  canvas.addEventListener("pointerdown", point);
  canvas.addEventListener("pointerleave", hide);
  canvas.addEventListener("blur", hide);
  canvas.addEventListener("keydown", (event) => {
    const step = {ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1}[event.key];
    if (event.key === "Escape") hide();
    if (!step || !spots.length) return;
    event.preventDefault();
    show(at < 0 ? (step > 0 ? 0 : spots.length - 1) : (at + step + spots.length) % spots.length);
    said.textContent = `${spots[at].title}: ${
        spots[at]
            .rows.map(
                     ([name, v]) => `${name} ${
                         v instanceof Node ? v.textContent :
                             isRef(v)      ? number(v.value) :
                                             v}`)
            .join(", ")}`;
  });

  canvas.append(tip);
  const figure =
      el("figure", {class: "chart"}, controls.childElementCount ? controls : null, canvas, said,
         caption ? el("figcaption", {}, caption) : null);
  new ResizeObserver(() => {
    if (Math.abs(canvas.clientWidth - width) > 1 && canvas.clientWidth > 0) redraw();
  }).observe(canvas);
  return figure;
}

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

/// SVG text with the k of d_k set low.
function label_text(selection, text) {
  text.split("d_k").forEach((part, i) => {
    if (i) {
      selection.append("tspan").attr("font-style", "italic").text("d");
      selection.append("tspan").attr("dy", "0.25em").attr("font-size", "0.75em").text("k");
    }
    if (part) selection.append("tspan").attr("dy", i ? "-0.19em" : null).text(part);
  });
  return selection;
}

const tick = (x) => {
  if (x === 0) return "0";
  const power = Math.log10(Math.abs(x));
  if (Math.abs(power - Math.round(power)) < 1e-9 && (power < -2.5 || power > 4.5)) return `10${superscript(Math.round(power))}`;
  return grouped(String(Number(x.toPrecision(6))));
};
/// Powers of ten inside a logarithmic domain, few enough to read; more steps where there are hardly any.
function log_ticks(scale, most = 7) {
  const [a, b] = d3.extent(scale.domain()).map(Math.log10);
  const powers = d3.range(Math.ceil(a - 1e-9), Math.floor(b + 1e-9) + 1);
  if (powers.length < 3) return scale.ticks(4).filter((t) => [1, 2, 5].includes(Number(t.toExponential()[0])));
  return powers.filter((p, i) => i % Math.ceil(powers.length / most) === 0).map((p) => 10 ** p);
}
const ticks_of = (scale, most) => (scale.base ? log_ticks(scale, most) : scale.ticks(most || 5));

function y_axis(g, scale, width, name, most) {
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
      .call(d3.axisLeft(scale).tickValues(ticks).tickFormat(tick).tickSize(0).tickPadding(6))
      .select(".domain")
      .remove();
  if (name)
    label_text(
        g.append("text").attr("class", "axis-name").attr("x", -8).attr("y", scale.range()[1] - 12).attr("text-anchor", "start"),
        name)
        .attr("transform", "translate(-34,0)");
}
function x_axis(g, scale, height, name, {values, width, format = tick} = {}) {
  const axis = d3.axisBottom(scale).tickSize(4).tickPadding(5).tickFormat(format);
  if (values) axis.tickValues(values);
  g.append("g").attr("class", "axis").attr("transform", `translate(0,${height})`).call(axis);
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
