// Steps 4 and 5: what comes back through softmax, and what reaches the queries, by d_k, from one measurement.

const gradient_dk = [4, 16, 32, 64, 128, 256, 512];
const gradient_sizes = {
  queries: 64,
  batches: 3
};
const gradient_data = (keys, call) =>
    call("gradient", {dk: gradient_dk, keys, ...gradient_sizes}, "gradient", {keep: true});

function gradient_frame(stage, {rules, quantiles, data, y, name, top = 30, plot, dk, words}) {
  const left = 46, right = stage.width > 520 ? 136 : 10, wide = stage.width - left - right;
  const x = d3.scaleLog().domain([gradient_dk[0], gradient_dk[gradient_dk.length - 1]]).range([8, wide - 8]);
  const g = scaled(stage.svg.append("g").attr("transform", `translate(${left},${top})`), y);
  y_axis(g, y, wide, name, 6);
  x_axis(g, x, plot, "", {values: gradient_dk, width: wide});
  words_at(g, -10, plot + 18, "d_k", {cls: "axis-name", anchor: "end"});
  if (!data) return {g, x, wide, left};
  const here = Math.max(x.domain()[0], Math.min(x.domain()[1], dk));
  line_at(g, [x(here), 0], [x(here), plot], "guide");
  const labels = [];
  for (const rule of rules) {
    const points = data.points.filter((p) => p.rule === rule);
    draw_band(g, {x, y, rule, points, quantiles});
    for (const p of points) {
      const q = quantiles(p), at = y(Math.max(y.domain()[0], q["0.5"]));
      mark(symbol(g, style_of(rule), x(p.dk), at, 40), ref(q, "0.5"), q["0.5"] > y.domain()[0] ? "ty" : null);
      stage.spot(left + x(p.dk), top + at, `${rule_name(rule)}, d_k = ${p.dk}`, words(p));
    }
    const last = points[points.length - 1];
    labels.push(
        {text: rule_name(rule), y: y(Math.max(y.domain()[0], quantiles(last)["0.5"])), colour: colour_of(rule)});
  }
  if (stage.width > 520)
    end_labels(g, wide + 4, labels, {bottom: plot});
  else
    draw_legend(g, rules, 4, plot - 8 - 17 * rules.length);
  return {g, x, wide, left};
}

const quantile_names = ["0.05", "0.25", "0.5", "0.75", "0.95"];

function backward_figure(state) {
  const rules = ["none", "sqrt_dk"];
  return live({
    state,
    needs: ["keys", "dk"],
    limits: story_limits,
    at: "story/4",
    says: 200,
    name: "gradient-at-scores",
    title: "The gradient that comes back through softmax",
    controls: el("div", {class: "control-grid"}, dk_slider(state), keys_slider(state)),
    ask: ({keys}, call) => gradient_data(keys, call),
    label: (data) => `Lengths of the gradient at a row's scores by d_k: bands of quantiles. Medians under no scaling: ${
        data.points.filter((p) => p.rule === "none")
            .map((p) => `${number(p.scores.quantiles["0.5"])} at ${p.dk}`)
            .join(", ")}. Under 1/√d_k: ${
        data.points.filter((p) => p.rule === "sqrt_dk")
            .map((p) => `${number(p.scores.quantiles["0.5"])} at ${p.dk}`)
            .join(", ")}.`,
    draw(stage, data) {
      const plot = stage.narrow ? 220 : 270, top = 30, y = d3.scaleLog().domain([1e-6, 2]).range([plot, 0]);
      const {g, x, wide} = gradient_frame(stage, {
        rules,
        data,
        y,
        plot,
        top,
        dk: state.values.dk,
        name: "length of the gradient at a row's scores",
        quantiles: (p) => p.scores.quantiles,
        words: (p) =>
            [...quantile_names.map((q) => [`${100 * q} % of rows below`, put(number, p.scores.quantiles, q)]),
             ["mean tr J", put(number, p, "trace_j", "value")],
             ["rows shut", put(percent, p, "share_trace_j_under_1pct")]]
      });
      words_at(g, -46, plot + 44, "rows that are shut (tr J below 0.01), in %:", {cls: "quiet"});
      rules.forEach((rule, k) => {
        const cy = plot + 64 + 18 * k;
        if (data)
          for (const p of data.points.filter((one) => one.rule === rule))
            mark(
                words_at(
                    g, x(p.dk), cy, percent(p["share_trace_j_under_1pct"]).replace(" %", ""),
                    {cls: "strong", anchor: "middle", fill: ink_of(colour_of(rule))}),
                ref(p, "share_trace_j_under_1pct"));
        if (stage.width > 520)
          words_at(g, wide + 24, cy, rule_name(rule), {cls: "quiet", fill: ink_of(colour_of(rule))});
      });
      return top + plot + 96;
    },
    caption: () => `Bands hold 90 % and 50 % of the rows, the line is the median; ${gradient_sizes.batches} × ${
        gradient_sizes.queries} queries on ${
        whole(state.values.keys)} keys. Every weight receives a random gradient of size 1.`,
    numbers: gradient_numbers("scores"),
    conclude: (data) => {
      const [a, b] = rules.map((rule) => nearest_point(data, rule, state.values.dk));
      const shut = a["share_trace_j_under_1pct"];
      return [
        shut > 0.02 ? "Undivided, rows shut: " : "At so small a d_k nothing is lost yet: ",
        ...where_measured(a, state.values.dk), " and ", put(exact, data, "keys"), " keys ",
        put(percent, a, "share_trace_j_under_1pct"), " of the rows are shut, and one row in twenty passes on less than ",
        put(digits(2), a, "scores", "quantiles", "0.05"), "; divided by √d_k it is ",
        put(percent, b, "share_trace_j_under_1pct"), " and ", put(digits(2), b, "scores", "quantiles", "0.05"), "."
      ];
    },
  });
}

function flat_figure(state) {
  const rules = ["none", "sqrt_dk", "dk"];
  return live({
    state,
    needs: ["keys", "dk"],
    limits: story_limits,
    at: "story/5",
    says: 215,
    name: "gradient-at-queries",
    title: "Weights of one row, and the gradient that reaches the query",
    controls: el("div", {class: "control-grid"}, dk_slider(state), keys_slider(state)),
    ask: async ({keys, dk}, call) => {
      const rows = {};
      for (const rule of rules) rows[rule] = await call("playground", {dk, ...softmax_sizes, rule}, rule);
      return {rows, gradient: await gradient_data(keys, call)};
    },
    label: (data) => `Left, the weights of one row, heaviest first: the largest is ${
        rules.map((r) => `${number(d3.max(data.rows[r].row.p))} ${rule_name(r)}`)
            .join(", ")}. Right, the median gradient that reaches a query, by d_k: ${
        rules
            .map(
                (r) => `${rule_name(r)} ${
                    data.gradient.points.filter((p) => p.rule === r)
                        .map((p) => `${number(p.queries.quantiles["0.5"])} at ${p.dk}`)
                        .join(", ")}`)
            .join("; ")}.`,
    draw(stage, data) {
      const beside = stage.width > 640, plot = beside ? 250 : 170, top = 44;
      const half = beside ? 0.4 * stage.width : stage.width;
      // The weights, on one logarithmic axis.
      const left = 46, wide = half - left - (beside ? 40 : 8);
      const y = d3.scaleLog().domain([1e-6, 1]).range([plot, 0]);
      words_at(stage.svg, 4, 14, "weights of one row", {cls: "panel-name"});
      const g = stage.svg.append("g").attr("transform", `translate(${left},${top})`);
      y_axis(g, y, wide, "", 5);
      const x = d3.scaleLinear().domain([1, softmax_sizes.keys]).range([0, wide]);
      x_axis(g, x, plot, "keys, heaviest first", {values: [1, 16, 32, 48, 64], width: wide});
      if (data)
        for (const rule of rules) {
          const row = data.rows[rule].row, order = by_weight(row).filter((key) => row.p[key] >= 1e-6);
          g.append("path")
              .attr("fill", "none")
              .attr("stroke", colour_of(rule))
              .attr("stroke-width", 2.4)
              .attr("stroke-dasharray", style_of(rule).dash)
              .attr("d", d3.line().x((_, place) => x(place + 1)).y((key) => y(row.p[key]))(order));
          order.forEach((key, place) => {
            if (place % 8 && place) return;
            mark(symbol(g, style_of(rule), x(place + 1), y(row.p[key]), 36), ref(row, "p", key), "ty");
            stage.spot(
                left + x(place + 1), top + y(row.p[key]), `${rule_name(rule)}, ${place + 1}. key`,
                [["weight", put(number, row, "p", key)]]);
          });
        }
      // What reaches the queries.
      const dy = beside ? 0 : top + plot + 60, dx = beside ? half : 0;
      const inner = {
        ...stage,
        width: stage.width - dx,
        svg: stage.svg.append("g").attr("transform", `translate(${dx},${dy})`),
        spot: (sx, sy, words, rows) => stage.spot(sx + dx, sy + dy, words, rows)
      };
      words_at(inner.svg, 4, 14, "gradient that reaches a query", {cls: "panel-name"});
      gradient_frame(inner, {
        rules,
        data: data && data.gradient,
        y: d3.scaleLog().domain([1e-6, 20]).range([plot, 0]),
        plot,
        top,
        dk: state.values.dk,
        name: "",
        quantiles: (p) => p.queries.quantiles,
        words: (p) => quantile_names.map((q) => [`${100 * q} % of rows below`, put(number, p.queries.quantiles, q)])
      });
      return dy + top + plot + 42;
    },
    caption: () => "One row of 64 weights under each rule, and the length of the gradient at a query: bands " +
        "hold 90 % and 50 % of the rows, the line is the median.",
    numbers: (data) => gradient_numbers("queries")(data.gradient),
    conclude: (data) => {
      const near = (rule) => nearest_point(data.gradient, rule, state.values.dk);
      const flat = data.rows.dk, root = near("sqrt_dk"), whole_dk = near("dk");
      const same = flat.measured.exp_entropy > 0.95 * flat.keys;
      return [
        same ? "Divided by d_k every key counts the same, whatever it holds: " :
               "So small a d_k still tells keys apart: divided by it, ",
        put(digits(3), flat, "measured", "exp_entropy"), " of ", put(exact, flat, "keys"), " keys count at d_k = ",
        put(exact, flat, "dk"), "; and a query receives a gradient of ",
        put(digits(2), whole_dk, "queries", "quantiles", "0.5"), " ", ...where_measured(whole_dk, state.values.dk),
        ", ", number(root.queries.quantiles["0.5"] / whole_dk.queries.quantiles["0.5"], 2),
        " times less than with √d_k."
      ];
    },
  });
}

const nearest_point = (data, rule, dk) => {
  const points = data.points.filter((p) => p.rule === rule);
  return points[d3.scan(points, (a, b) => Math.abs(Math.log(a.dk / dk)) - Math.abs(Math.log(b.dk / dk)))];
};
const where_measured = (point, dk) =>
    [point.dk === dk ? "at d_k = " : "at the nearest measured d_k = ", put(exact, point, "dk")];
const gradient_numbers = (where) => (data) => ({
  columns: [
    "rule", "dk", "keys", ...quantile_names.map((q) => `quantile_${q}`), "mean", "mean_square", "trace_j",
    "share_trace_j_under_1pct"
  ],
  rows: data.points.map(
      (p) =>
          [p.rule, p.dk, data.keys, ...quantile_names.map((q) => p[where].quantiles[q]), p[where].mean,
           p[where].mean_square.value, p.trace_j.value, p["share_trace_j_under_1pct"]])
});
