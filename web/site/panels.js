// Pieces that several figures draw: scores as a histogram, weights and gradients of the keys of one row, weights as a
// heat map with its colour bar, bands of quantiles. Each draws into a group at (0, 0), `wide` × `plot`, and tells
// `spot` what can be read where.

/// A rule's colour as text has it: dark enough to be read, light enough on black.
const ink_of = (colour) => `color-mix(in oklab, ${colour} 72%, var(--ink))`;
const colour_of = (rule) => (rule ? style_of(rule).colour : "var(--soft)");

/// Words in a drawing, their indices set low.
const words_at = (g, x, y, words, {cls = null, anchor = null, fill = null} = {}) => label_text(
    g.append("text").attr("class", cls).attr("x", x).attr("y", y).attr("text-anchor", anchor).style("fill", fill),
    String(words));
const line_at = (g, [x1, y1], [x2, y2], cls) =>
    g.append("line").attr("class", cls).attr("x1", x1).attr("y1", y1).attr("x2", x2).attr("y2", y2);

function panel(stage, x, y, title, colour) {
  const g = stage.svg.append("g").attr("transform", `translate(${x},${y})`);
  if (title) words_at(g, 0, -12, title, {cls: "panel-name", fill: colour ? ink_of(colour) : null});
  return g;
}

/// Scores as they were drawn over the normal curve that was predicted. The axis stays where it is when the spread
/// changes.
function draw_histogram(g, {wide, plot, rule, colour = colour_of(rule), data, reach, spot, narrow}) {
  const x = d3.scaleLinear().domain([-reach, reach]).range([0, wide]);
  const values = x.ticks(narrow || wide < 260 ? 4 : 6);
  g.append("g")
      .attr("class", "grid")
      .selectAll("line")
      .data(values)
      .join("line")
      .attr("x1", x)
      .attr("x2", x)
      .attr("y2", plot);
  if (data) {
    const {edges, counts, expected} = data.histogram;
    const share = (list) => list.map((c, j) => c / (edges[j + 1] - edges[j]));
    const measured = share(counts), predicted = expected ? share(expected) : null;
    const y = d3.scaleLinear().domain([0, 1.08 * d3.max([...measured, ...(predicted || [])])]).range([plot, 0]);
    const inside = (v) => Math.max(0, Math.min(wide, x(v)));
    const steps =
        counts.map((_, j) => [inside(edges[j]), inside(edges[j + 1]), y(measured[j])]).filter(([a, b]) => b > a);
    g.append("path")
        .style("fill", colour)
        .attr("fill-opacity", 0.75)
        .attr("d", `${steps.map(([a, b, h]) => `M${a},${plot}V${h}H${b}V${plot}Z`).join("")}`);
    if (predicted)
      g.append("path")
          .attr("class", "predicted")
          .attr(
              "d",
              d3.line()
                  .curve(d3.curveMonotoneX)
                  .x((_, j) => inside((edges[j] + edges[j + 1]) / 2))
                  .y((v) => y(v))(predicted));
    counts.forEach((_, j) => {
      const middle = (edges[j] + edges[j + 1]) / 2;
      if (Math.abs(middle) < reach)
        spot(x(middle), y(measured[j]), `scores from ${number(edges[j])} to ${number(edges[j + 1])}`, () => [
          ["counted", put(exact, data, "histogram", "counts", j)],
          ...(predicted ? [["predicted", ref(data, "histogram", "expected", j)]] : [])
        ]);
    });
  }
  line_at(g, [0, plot], [wide, plot], "floor");
  x_axis(g, x, plot, "score", {values, width: wide});
}

/// Over a histogram, in a strip of `spread_strip`: how wide σ is, against the spread at which this many keys freeze.
const spread_strip = 30;
function draw_spread(g, {wide, plot, data, reach, rule, colour = colour_of(rule)}) {
  if (!data) return;
  const x = d3.scaleLinear().domain([-reach, reach]).range([0, wide]).clamp(true), y = 6;
  const sigma = data.measured.sigma, critical = data.critical_sigma;
  for (const side of [-1, 1]) line_at(g, [x(side * critical), 13], [x(side * critical), plot + spread_strip], "limit");
  g.append("path")
      .attr("class", "span")
      .attr("d", `M${x(-sigma)},${y}H${x(sigma)}M${x(-sigma)},${y - 5}v10M${x(sigma)},${y - 5}v10`)
      .style("stroke", colour);
  words_at(g, Math.min(x(sigma) + 7, wide - 62), y + 4, `σ = ${number(sigma)}`, {cls: "halo strong"});
  words_at(g, x(-critical) - 5, y + 21, `σ_c = ${number(critical)}`, {cls: "halo quiet", anchor: "end"});
}
/// The weights of one row, the heaviest first. Two figures ask, and thousands take a while to sort.
const orders = new WeakMap();
function by_weight(row) {
  if (!orders.has(row)) orders.set(row, d3.range(row.p.length).sort((a, b) => row.p[b] - row.p[a]));
  return orders.get(row);
}

/// Bars that stand on one floor: [{x, y, height, reference, fill}], fill only where it is not theirs together. Made of
/// one copied element, which for hundreds of them takes half the time that a selection takes.
function draw_bars(g, {width, colour, bars}) {
  const all = g.append("g").attr("fill", colour).node();
  const model = document.createElementNS("http://www.w3.org/2000/svg", "rect");
  model.setAttribute("class", "mark");
  model.setAttribute("width", width);
  for (const {x, y, height, reference, fill} of bars) {
    const bar = model.cloneNode();
    bar.setAttribute("x", x);
    bar.setAttribute("y", y);
    bar.setAttribute("height", height);
    if (fill) bar.setAttribute("fill", fill);
    bar.setAttribute("data-path", reference.path);
    bar.setAttribute("data-value", String(reference.value));
    all.appendChild(bar);
  }
}

function draw_weights(g, {wide, plot, rule, colour = colour_of(rule), data, spot, most}) {
  const y = d3.scaleLinear().domain([0, 1]).range([plot, 0]);
  y_axis(g, y, wide, "", 5);
  if (data) {
    const row = data.row, order = by_weight(row), n = Math.min(order.length, most || order.length);
    const x = d3.scaleBand().domain(d3.range(n)).range([0, wide]).paddingInner(n > 100 ? 0 : 0.18);
    draw_bars(g, {
      width: Math.max(0.6, x.bandwidth()),
      colour,
      bars: order.slice(0, n).map((key, place) => {
        const top = y(row.p[key]);
        return {x: x(place), y: top, height: plot - top, reference: ref(row, "p", key)};
      })
    });
    order.slice(0, n).forEach((key, place) => {
      spot(x(place) + x.bandwidth() / 2, y(row.p[key]), `key ${key + 1}, ${place + 1}. of ${whole(row.p.length)}`, () => [
        ["score", ref(row, "scores", key)], ["weight", ref(row, "p", key)],
        ["gradient at its score", ref(row, "score_gradient", key)]
      ]);
    });
    const even = 1 / row.p.length;
    line_at(g, [0, y(even)], [wide, y(even)], "reference");
    const top = row.p[order[0]];
    words_at(
        g, y(top) < 20 ? Math.min(x.bandwidth() + 6, wide - 40) : 0,
        y(top) < 20 ? Math.max(12, y(top) + 5) : y(top) - 6, number(top), {cls: "halo strong"});
  }
  line_at(g, [0, plot], [wide, plot], "floor");
}

/// What a gradient of unit size on the weights becomes at each score, on a logarithmic axis, keys in the order of their
/// weights.
function draw_key_gradients(g, {wide, plot, rule, colour = colour_of(rule), data, spot, floor = 1e-9, most}) {
  const y = d3.scaleLog().domain([floor, 1]).range([plot, 0]);
  y_axis(g, y, wide, "", 5);
  if (data) {
    const row = data.row, order = by_weight(row), n = Math.min(order.length, most || order.length);
    const x = d3.scaleBand().domain(d3.range(n)).range([0, wide]).paddingInner(n > 100 ? 0 : 0.18);
    const bars = order.slice(0, n).map((key, place) => {
      const value = row.score_gradient[key], seen = value > floor, top = seen ? y(value) : plot - 2;
      const fill = seen ? null : "var(--soft)";
      return {x: x(place), y: top, height: plot - top, fill, reference: ref(row, "score_gradient", key)};
    });
    draw_bars(g, {width: Math.max(0.6, x.bandwidth()), colour, bars});
    order.slice(0, n).forEach((key, place) => {
      const value = row.score_gradient[key], seen = value > floor;
      spot(
          x(place) + x.bandwidth() / 2, seen ? y(value) : plot,
          `key ${key + 1}, ${place + 1}. of ${whole(row.p.length)}`,
          () => [["weight", ref(row, "p", key)], ["gradient at its score", ref(row, "score_gradient", key)]]);
    });
  }
  line_at(g, [0, plot], [wide, plot], "floor");
}

// Weights as a heat map: ink on paper, on a logarithmic scale, so that both a soft and a frozen row can be seen.
const heat_floor = 1e-4, heat_levels = 32;
const heat_share = (p) => Math.max(0, Math.min(1, 1 - Math.log(Math.max(p, 1e-300)) / Math.log(heat_floor)));
const heat_colour = (share) => `color-mix(in oklab, var(--heat) ${number_for_css(100 * share)}%, var(--heat-paper))`;
const number_for_css = (x) => Number(x.toFixed(2));

/// One path a level of ink: thousands of cells are then quick to draw.
function draw_heat(g, {wide, plot, data, spot, every = 1}) {
  g.append("rect").attr("class", "heat-paper").attr("width", wide).attr("height", plot);
  if (!data) return;
  const {queries, keys, values} = data.weights, w = wide / keys, h = plot / queries;
  const levels = d3.range(heat_levels + 1).map(() => []);
  const lefts = d3.range(keys).map((j) => `M${(j * w).toFixed(2)},`);
  const cell = `h${w.toFixed(2)}v${h.toFixed(2)}h${(-w).toFixed(2)}z`;
  const tops = d3.range(queries).map((i) => (i * h).toFixed(2) + cell);
  for (let i = 0; i < queries; ++i)
    for (let j = 0; j < keys; ++j) {
      const p = values[i * keys + j];
      if (p === null) continue;
      levels[Math.round(heat_share(p) * heat_levels)].push(lefts[j] + tops[i]);
      if (i % every === 0 && j % every === 0)
        spot(
            (j + 0.5) * w, (i + 0.5) * h, `query ${i + 1}, key ${j + 1}`,
            () => [["weight", ref(data, "weights", "values", i * keys + j)]]);
    }
  levels.forEach((paths, level) => {
    if (level && paths.length)
      g.append("path")
          .attr("class", "heat-cells")
          .attr("d", paths.join(""))
          .style("fill", heat_colour(level / heat_levels));
  });
}

/// The colour bar of such a map; returns its height.
const draw_heat_bar = (g, width, name = "weight of a key") => colour_bar(g, heat_scale, {width, name});
const heat_scale = {
  at: heat_share,
  colour: (p) => heat_colour(heat_share(p)),
  inverse: (part) => heat_floor ** (1 - part),
  ticks: [1e-4, 1e-3, 1e-2, 0.1, 1],
  under: true,
};

/// A quantity by d_k under one rule: a band from 5 to 95 %, a darker one from 25 to 75 %, and the median.
function draw_band(g, {x, y, rule, points, quantiles}) {
  const at = (p, q) => y(Math.max(y.domain()[0], Math.min(y.domain()[1], quantiles(p)[q])));
  for (const [low, high, opacity] of [["0.05", "0.95", 0.18], ["0.25", "0.75", 0.3]])
    g.append("path")
        .attr("fill", colour_of(rule))
        .attr("fill-opacity", opacity)
        .attr("d", d3.area().x((p) => x(p.dk)).y0((p) => at(p, low)).y1((p) => at(p, high))(points));
  g.append("path")
      .attr("fill", "none")
      .attr("stroke", colour_of(rule))
      .attr("stroke-width", 2.4)
      .attr("stroke-dasharray", style_of(rule).dash)
      .attr("d", d3.line().x((p) => x(p.dk)).y((p) => at(p, "0.5"))(points));
}

/// Names at the right end of lines, moved apart where they would touch. labels: [{y, text, colour}].
function end_labels(g, x, labels, {least = 15, top = 0, bottom}) {
  const heights = apart(labels.map((l) => l.y), least, top, bottom);
  labels.forEach((l, i) => words_at(g, x, heights[i] + 4, l.text, {cls: "halo strong", fill: ink_of(l.colour)}));
}

/// Which line is which rule, one under the other.
function draw_legend(g, rules, x, y) {
  rules.forEach((rule, k) => {
    const at = y + 17 * k, style = style_of(rule);
    g.append("line")
        .attr("x1", x)
        .attr("x2", x + 26)
        .attr("y1", at)
        .attr("y2", at)
        .attr("stroke", style.colour)
        .attr("stroke-width", 2.4)
        .attr("stroke-dasharray", style.dash);
    symbol(g, style, x + 13, at, 40);
    words_at(g, x + 33, at + 4, rule_name(rule), {cls: "halo strong", fill: ink_of(style.colour)});
  });
}
