// Rows of bars with a name above or beside each: what every rule makes of one head; what the kernel reaches.

function row_bars(stage, {rows, name, value, reference, colour, text, tip, most, axis, tick}) {
  const wide_names = !stage.narrow, left = wide_names ? 190 : 4, right = 64, line = wide_names ? 26 : 40, top = 4;
  const plot = line * rows.length, wide = stage.width - left - right;
  const x = d3.scaleLinear().domain([0, most]).range([0, wide]);
  const g = scaled(stage.svg.append("g").attr("transform", `translate(${left},${top})`), x);
  g.append("g")
      .attr("class", "grid")
      .selectAll("line")
      .data(x.ticks(5))
      .join("line")
      .attr("x1", x)
      .attr("x2", x)
      .attr("y2", plot);
  x_axis(g, x, plot, axis, {values: x.ticks(stage.narrow ? 4 : 6), width: wide, format: tick});
  rows.forEach((row, k) => {
    const y = k * line, v = value(row), bar = wide_names ? y + 5 : y + 19, height = 16;
    label_text(
        g.append("text")
            .attr("x", wide_names ? -8 : 0)
            .attr("y", wide_names ? y + 17 : y + 14)
            .attr("text-anchor", wide_names ? "end" : "start"),
        name(row));
    if (!isNumber(v)) return;
    mark(
        g.append("rect")
            .attr("x", 0)
            .attr("y", bar)
            .attr("height", height)
            .attr("width", x(v))
            .attr("rx", 2)
            .attr("fill", colour(row)),
        reference(row), "width");
    g.append("text").attr("class", "halo").attr("x", x(v) + 6).attr("y", bar + 12).text(text(v));
    stage.spot(left + x(v), top + bar + height / 2, name(row), tip(row));
  });
  return top + plot + 42;
}

const whatif_measures = [
  {id: "relative_entropy", label: "entropy over ln n"}, {id: "p_max", label: "mean largest weight"},
  {id: "sigma", label: "spread of the scores"}, {id: "trace_j", label: "tr J: gradient let through"},
  {id: "share_trace_j_under_1pct", label: "rows with tr J below 0.01"},
  {id: "output_change", label: "change of the output"}
];
experiments.whatif = (data) => {
  const measures = whatif_measures;
  const plain = Object.keys(known_rules);
  const series = plain.filter((id) => data.rows.some((r) => r.rule === id))
                     .map((id) => ({id, label: style_of(id).label, style: style_of(id)}));
  if (data.rows.some((r) => !plain.includes(r.rule)))
    series.push({id: "others", label: "all others", style: {colour: "var(--rule-3)", symbol: d3.symbolDiamond, dash: "9 3 2 3"}});
  const of = (r) => series.find((s) => s.id === r.rule) || series[series.length - 1];
  const figure = chart({
    label: "What every rule makes of the same head.",
    series,
    choices: {Show: measures},
    caption: [
      put(exact, data, "len_q"), " queries on ", put(exact, data, "len_kv"), " keys, d_k = ", put(exact, data, "dk"),
      ". The divisor for unit variance here: ",
      data.unit_variance_divisors.slice(0, 8).flatMap((_, j) => [j ? ", " : "", ref(data, "unit_variance_divisors", j)]), "."
    ],
    draw(stage) {
      const what = stage.chosen.Show, rows = data.rows.filter((r) => stage.visible.includes(of(r)));
      return row_bars(stage, {
        rows,
        name: (r) => rule_name(r.rule),
        value: (r) => r[what],
        reference: (r) => ref(r, what),
        axis: measures.find((m) => m.id === what).label,
        colour: (r) => of(r).style.colour,
        text: number,
        most: what === "sigma" || what === "output_change" ? d3.max(rows, (r) => r[what]) || 1 : 1,
        tip: (r) => [...measures.map((m) => [m.label, ref(r, m.id)]), ["largest score", ref(r, "largest_score")]]
      });
    },
  });
  const rows = table(
      "Every rule",
      [
        {title: "rule, as one types it", left: true}, {title: "what it is", left: true, free: true}, "spread σ",
        "largest score", "entropy", "over ln n", "effective keys", "largest weight", "tr J", "tr J below 0.01", "change of output"
      ],
      data.rows.map(
          (r) =>
              [ref(r, "rule"), ref(r, "description"), ref(r, "sigma"), ref(r, "largest_score"), ref(r, "entropy"),
               ref(r, "relative_entropy"), ref(r, "effective_keys"), ref(r, "p_max"), ref(r, "trace_j"),
               put(percent, r, "share_trace_j_under_1pct"), ref(r, "output_change")]));
  return {figure, below: [all_numbers("All numbers", rows)]};
};

experiments.bench = (data) => {
  const name = (r) => `${r.heads} × ${r.length} × ${r.dim}${r.causal ? ", causal" : ""}`;
  const figure = chart({
    label: "Share of the machine's multiply-add peak that the fused forward pass reaches.",
    choices: {
      Show: [
        {id: "of_peak", label: "share of the peak"}, {id: "gflops", label: "GFLOP/s"}, {id: "milliseconds", label: "milliseconds"}
      ]
    },
    caption: [
      "heads × length × dim, on ", put(exact, data, "threads"), data.threads === 1 ? " thread, " : " threads, ", ref(data, "isa"), "; the peak is ",
      ref(data, "peak_gflops"), " GFLOP/s, measured in turn with the kernel."
    ],
    draw: (stage) => {
      const what = stage.chosen.Show;
      return row_bars(stage, {
        rows: data.rows,
        name,
        value: (r) => r[what],
        reference: (r) => ref(r, what),
        axis: what === "of_peak" ? "share of the peak" : what,
        colour: () => "var(--rule-sqrt_dk)",
        text: number,
        most: Math.max(what === "of_peak" ? 1 : 0, (d3.max(data.rows, (r) => r[what]) || 0) * 1.05),
        tip: (r) => [
            ["share of the peak", ref(r, "of_peak")], ["GFLOP/s", ref(r, "gflops")], ["milliseconds", ref(r, "milliseconds")],
            ["spread", put(percent, r, "spread")]]
      });
    },
  });
  const rows = table(
      "Forward in f32",
      [
        "heads", "length", "dim", "causal", {title: "ms", kind: "measured"}, "spread", {title: "GFLOP/s", kind: "measured"},
        "of the peak"
      ],
      data.rows.map(
          (r) =>
              [put(exact, r, "heads"), put(exact, r, "length"), put(exact, r, "dim"), ref(r, "causal"), ref(r, "milliseconds"),
               put(percent, r, "spread"), ref(r, "gflops"), ref(r, "of_peak")]));
  return {figure, below: [all_numbers("All numbers", rows)]};
};
