// What the playground shows of a head under two rules: each figure has a panel for either, on the same axes.

// The first rule is drawn in the colour of its name where it has one, and so is the second: where both are the same, or
// neither is known, shape and dash tell them apart.
const pair_styles = (a, b) => {
  const style = (rule, spare) => (Object.hasOwn(known_rules, rule) ? known_rules[rule] : spare);
  const first = style(a, {label: a, colour: "var(--rule-3)", symbol: d3.symbolDiamond, dash: "9 3 2 3"});
  const second = a === b || !Object.hasOwn(known_rules, b) ?
      {label: b, colour: "var(--rule-4)", symbol: d3.symbolStar, dash: "5 2"} :
      style(b);
  return [first, second];
};

/// Two panels of one kind, on the same axes.
function side_by_side(stage, {plot, top = 30, bottom = 40, left = 44, gap = 26, least = 300, draw, data}) {
  const columns = stage.width >= 2 * least + gap ? 2 : 1, each = (stage.width - (columns - 1) * gap) / columns;
  for (const k of [0, 1]) {
    const dx = (columns === 2 ? k * (each + gap) : 0) + left,
          dy = top + (columns === 2 ? 0 : k * (plot + top + bottom));
    const g = stage.svg.append("g").attr("transform", `translate(${dx},${dy})`);
    const one = data && data.heads[k];
    const label = one && plain_index(rule_name(one.rule));  // once, for thousands of spots
    if (one) words_at(g, 0, -14, rule_name(one.rule), {cls: "panel-name", fill: ink_of(data.styles[k].colour)});
    draw(g, {
      k,
      one,
      wide: each - left - 4,
      plot,
      style: data && data.styles[k],
      spot: (x, y, title, rows) => stage.spot(dx + x, dy + y, `${label}: ${title}`, rows)
    });
  }
  return columns === 2 ? top + plot + bottom : 2 * (top + plot + bottom);
}

const head_measures = [
  {id: "p_max", label: "largest weight", share: (m) => m.p_max},
  {
    id: "exp_entropy",
    label: "share of keys that count",
    share: (m, one) => (isNumber(m.exp_entropy) ? m.exp_entropy / one.keys : null)
  },
  {
    id: "entropy",
    label: "entropy over ln n",
    share: (m, one) => (isNumber(m.entropy) ? m.entropy / Math.log(one.keys) : null)
  },
  {id: "trace_j", label: "tr J: gradient let through", share: (m) => m.trace_j},
  {id: "share_trace_j_under_1pct", label: "rows that are shut", share: (m) => m["share_trace_j_under_1pct"]},
];

const scores_of_heads = {
  name: "playground-scores",
  title: "Scores",
  label: (data) => `Histograms of the scores over the predicted normal curve. ${
      data.heads
          .map(
              (h) => `${rule_name(h.rule)}: spread ${number(h.measured.sigma)}, predicted ${
                  number(h.theory.sigma)}, largest ${number(h.measured.score_max)}`)
          .join("; ")}.`,
  caption: () =>
      "Scores as softmax gets them, the predicted curve over them (dashed), their spread σ, and the critical " +
      "spread σ_c (dotted).",
  draw: (stage, data) => {
    const reach =
        data ? d3.max(data.heads, (h) => Math.max(...h.histogram.edges.map(Math.abs), 1.15 * h.critical_sigma)) : 5;
    return side_by_side(stage, {
      plot: 190,
      left: 8,
      data,
      draw: (g, {one, wide, plot, style, spot}) => {
        const inner = g.append("g").attr("transform", `translate(0,${spread_strip})`);
        draw_histogram(inner, {
          wide,
          plot: plot - spread_strip,
          colour: style && style.colour,
          data: one,
          reach,
          spot: (x, y, title, rows) => spot(x, y + spread_strip, title, rows)
        });
        draw_spread(g, {wide, plot: plot - spread_strip, data: one, reach, colour: style && style.colour});
      }
    });
  },
  numbers: (data) => ({
    columns: ["rule", "from", "to", "count", "expected"],
    rows: data.heads.flatMap(
        (h) => h.histogram.counts.map(
            (c, j) =>
                [h.rule, h.histogram.edges[j], h.histogram.edges[j + 1], c,
                 h.histogram.expected ? h.histogram.expected[j] : null]))
  }),
};

const weights_of_heads = {
  name: "playground-weights",
  title: "Weights",
  label: (data) => `Heat maps of the attention weights. ${
      data.heads
          .map(
              (h) => `${rule_name(h.rule)}: largest weight of a row ${number(h.measured.p_max)} on average, ${
                  number(h.measured.exp_entropy)} of ${h.keys} keys count`)
          .join("; ")}.`,
  caption: (data) => [
    "Weights of the first queries (rows) on the first keys (columns), at most 32 × 64. ",
    data && data.heads[0].row.query >= data.heads[0].weights.queries ?
        `Query ${data.heads[0].row.query + 1}, whose row is shown below, is not among them.` :
        "The row that is shown below is marked."
  ],
  draw: (stage, data) => {
    const height = side_by_side(stage, {
      plot: Math.min(230, Math.round(0.24 * stage.width) + 90),
      left: 8,
      bottom: 26,
      data,
      draw: (g, {one, wide, plot, spot}) => {
        draw_heat(g, {wide, plot, data: one, spot});
        g.append("rect").attr("class", "heat-frame").attr("width", wide).attr("height", plot);
        const map = one && one.weights;
        if (!map || !data || one.row.query >= map.queries) return;
        const h = plot / map.queries;
        g.append("path").attr("class", "row-mark").attr("d", `M-7,${(one.row.query + 0.5) * h - 5}l7,5l-7,5z`);
        g.append("rect").attr("class", "row-frame").attr("y", one.row.query * h).attr("width", wide).attr("height", h);
      }
    });
    const wide = Math.min(320, stage.width - 16);
    draw_heat_bar(stage.svg.append("g").attr("transform", `translate(8,${height})`), wide);
    return height + 56;
  },
  numbers: (data) => ({
    columns: ["rule", "query", "key", "weight"],
    rows: data.heads.flatMap(
        (h) =>
            h.weights.values.map((p, i) => [h.rule, Math.floor(i / h.weights.keys) + 1, (i % h.weights.keys) + 1, p]))
  }),
};

const measures_of_heads = {
  name: "playground-measures",
  title: "Measured against predicted",
  label: (data) => data.heads
                       .map(
                           (h) => `${rule_name(h.rule)}: spread over the critical one ${
                               number(h.measured.sigma / h.critical_sigma)}, ${
                               head_measures.map((m) => `${m.label} ${number(m.share(h.measured, h))}`).join(", ")}`)
                       .join("; ") +
      ".",
  caption: () =>
      "Filled marks are measured, open diamonds predicted. Above: the spread over the critical one; beyond 1 a " +
      "row is frozen.",
  draw: (stage, data) => {
    const names = stage.width > 520, left = names ? 186 : 8, right = 22, wide = stage.width - left - right,
          line = names ? 32 : 62;
    const x = d3.scaleLinear().domain([0, 1]).range([0, wide]),
          ratio = d3.scaleLog().domain([0.02, 20]).range([0, wide]).clamp(true);
    const top = names ? 36 : 44, lower = top + line + 62, bottom = lower + line * head_measures.length;
    const svg = stage.svg.append("g").attr("transform", `translate(${left},0)`);
    const name = (words, y) =>
        words_at(svg, names ? -12 : 0, names ? y + 4 : y - 27, words, {anchor: names ? "end" : "start"});
    const marks = (y, scale, values, predicted, references) => data && data.heads.forEach((h, k) => {
      const value = values(h), guess = predicted(h), dy = y + (k ? 6 : -6);
      if (isNumber(guess))
        svg.append("path")
            .attr("class", "predicted-mark")
            .style("stroke", data.styles[k].colour)
            .attr("d", d3.symbol().type(d3.symbolDiamond).size(190)())
            .attr("transform", `translate(${scale(guess)},${dy})`);
      if (!isNumber(value)) return;
      mark(symbol(svg, data.styles[k], scale(value), dy, 70), references(h));
      stage.spot(
          left + scale(value), dy, rule_name(h.rule).replace("d_k", "dₖ"),
          [["measured", number(value)], ["predicted", number(guess)]]);
    });
    svg.append("rect")
        .attr("class", "frozen-zone")
        .attr("x", ratio(1))
        .attr("width", wide - ratio(1))
        .attr("y", top - 14)
        .attr("height", line + 6);
    words_at(svg, wide - 4, top - 24, "frozen", {cls: "quiet", anchor: "end"});
    line_at(svg, [0, top], [wide, top], "row-line");
    name("spread: σ over σ_c", top);
    line_at(svg, [ratio(1), top - 14], [ratio(1), top + line - 8], "right-line");
    x_axis(svg, ratio, top + line - 8, "", {values: [0.1, 0.3, 1, 3, 10], width: wide});
    marks(
        top, ratio, (h) => h.measured.sigma / h.critical_sigma,
        (h) => (isNumber(h.theory.sigma) ? h.theory.sigma / h.critical_sigma : null),
        (h) => ref(h, "measured", "sigma"));
    svg.append("g")
        .attr("class", "grid")
        .selectAll("line")
        .data(x.ticks(5))
        .join("line")
        .attr("x1", x)
        .attr("x2", x)
        .attr("y1", lower - 20)
        .attr("y2", bottom - 10);
    head_measures.forEach((m, k) => {
      const y = lower + k * line;
      line_at(svg, [0, y], [wide, y], "row-line");
      name(m.label, y);
      marks(
          y, x, (h) => m.share(h.measured, h),
          (h) => (h.theory && isNumber(h.theory[m.id]) ? m.share(h.theory, h) : null), (h) => ref(h, "measured", m.id));
    });
    x_axis(svg, x, bottom - 10, "", {values: x.ticks(5), width: wide});
    return bottom + 22;
  },
  numbers: (data) => ({
    columns: ["rule", "quantity", "measured", "predicted"],
    rows: data.heads.flatMap(
        (h) =>
            Object.keys(h.measured)
                .map((name) => [h.rule, name, h.measured[name], h.theory && name in h.theory ? h.theory[name] : null]))
  }),
};

const row_of_heads = {
  name: "playground-row",
  title: "One row",
  label: (data) => `The weights of query ${data.heads[0].row.query + 1}, heaviest first. ${
      data.heads.map((h) => `${rule_name(h.rule)}: largest ${number(d3.max(h.row.p))}`).join("; ")}.`,
  caption: (data) =>
      `The weights of query ${data ? data.heads[0].row.query + 1 : 1}, heaviest first; dotted, all equal.`,
  draw: (stage, data) => side_by_side(stage, {
    plot: 150,
    data,
    bottom: 34,
    draw: (g, {one, wide, plot, style, spot}) => {
      draw_weights(g, {wide, plot, colour: style && style.colour, data: one, spot, most: 128});
      words_at(
          g, wide, plot + 18,
          one && one.row.p.length > 128 ? `the 128 heaviest of ${whole(one.row.p.length)} keys` :
                                          "keys, heaviest first",
          {cls: "axis-name", anchor: "end"});
    }
  }),
  numbers: (data) => ({
    columns: ["rule", "query", "key", "score", "weight", "gradient_at_score"],
    rows: data.heads.flatMap(
        (h) => h.row.p.map((p, j) => [h.rule, h.row.query + 1, j + 1, h.row.scores[j], p, h.row.score_gradient[j]]))
  }),
};

const gradient_of_heads = {
  name: "playground-gradient",
  title: "Gradient per key",
  label: (data) => `What a random gradient of size 1 on the weights becomes at each key's score. ${
      data.heads
          .map(
              (h) => `${rule_name(h.rule)}: of ${whole(h.keys)} keys ${dead_keys(h.row)} less than a thousandth`)
          .join("; ")}.`,
  caption: () =>
      "What reaches each key's score of that row when every weight receives a random gradient of size 1; keys " +
      "in the same order, grey below 10⁻⁹.",
  draw: (stage, data) => side_by_side(stage, {
    plot: 150,
    data,
    bottom: 34,
    draw: (g, {one, wide, plot, style, spot}) =>
        draw_key_gradients(g, {wide, plot, colour: style && style.colour, data: one, spot, most: 128})
  }),
  numbers: (data) => ({
    columns: ["rule", "query", "key", "score", "weight", "gradient_at_score"],
    rows: data.heads.flatMap(
        (h) => h.row.p.map((p, j) => [h.rule, h.row.query + 1, j + 1, h.row.scores[j], p, h.row.score_gradient[j]]))
  }),
};

const measure_rows = [
  ["spread σ of the scores", "sigma", digits(4)], ["mean score", "score_mean", digits(3)],
  ["largest score", "score_max", digits(4)], ["largest weight of a row", "p_max", digits(3)],
  ["entropy, nats", "entropy", digits(4)], ["effective keys", "exp_entropy", digits(4)],
  ["tr J", "trace_j", digits(3)], ["‖J‖²", "frobenius_j", digits(3)],
  ["rows shut (tr J below 0.01)", "share_trace_j_under_1pct", percent]
];
function playground_table(data) {
  const column =
      (h) => [{title: `${rule_name(h.rule)}: measured`, kind: "measured"}, {title: "predicted", kind: "predicted"}];
  const cells = (h, name, format) =>
      [put(format, h, "measured", name), h.theory && isNumber(h.theory[name]) ? put(format, h, "theory", name) : "–"];
  return table("All numbers, means over the rows", [{title: "quantity", left: true}, ...data.heads.flatMap(column)], [
    [
      "σ_c, where rows freeze", "", put(digits(4), data.heads[0], "critical_sigma"), "",
      put(digits(4), data.heads[1], "critical_sigma")
    ],
    ...measure_rows.map(([words, name, format]) => [words, ...data.heads.flatMap((h) => cells(h, name, format))])
  ]);
}
