// The same scores kept in several formats.

experiments.precision = (data) => {
  const measures = [
    {id: "p_max", label: "mean largest weight"}, {id: "share_p_max_over_99pct", label: "rows with a weight above 0.99"},
    {id: "signal_bits", label: "bits of signal in the weights"}, {id: "p_total_variation", label: "weight at wrong keys"},
    {id: "share_rows_overflow", label: "rows lost to overflow"}
  ].filter((m) => data.points.some((p) => isNumber(p[m.id]) && (m.id !== "p_total_variation" || p[m.id] > 0)));
  const groups = unique(data.points.map((p) => `${p.dk}/${p.gain}`)), formats = unique(data.points.map((p) => p.dtype));
  const figure = chart({
    label: "What each storage format does to the weights, by rule.",
    series: rule_series(data.points.map((p) => p.rule)),
    choices: {Show: measures},
    caption: [
      "Saturation would differ between formats if it came of rounding. ", put(exact, data, "queries"), " queries on ",
      put(exact, data, "keys"), " keys; a mark is missing where nothing could be measured."
    ],
    draw(stage) {
      const what = stage.chosen.Show, rules = stage.visible.map((s) => s.id);
      const grid = panels(groups.length, {width: stage.width, least: 260, gap: 20});
      const top = 48, bottom = 44, plot = 210, left = 46, each = top + plot + bottom;
      const values = data.points.map((p) => p[what]).filter(isNumber);
      const y = what === "p_total_variation" ?
          d3.scaleLog().domain([d3.min(values.filter((v) => v > 0)) / 2, d3.max(values) * 2]).range([plot, 0]) :
          d3.scaleLinear().domain(what === "signal_bits" ? [0, d3.max(values) * 1.1] : [0, 1.05]).range([plot, 0]);
      groups.forEach((group, k) => {
        const points = data.points.filter((p) => `${p.dk}/${p.gain}` === group && rules.includes(p.rule));
        const [dx, line] = grid.at(k), dy = line * each + top, wide = grid.each - left;
        const g = scaled(stage.svg.append("g").attr("transform", `translate(${dx + left},${dy})`), y);
        const x = d3.scaleBand().domain(formats).range([0, wide]).padding(0.2),
              within = d3.scalePoint().domain(rules).range([0, x.bandwidth()]).padding(0.5);
        const one = data.points.find((p) => `${p.dk}/${p.gain}` === group);
        label_text(
            g.append("text").attr("class", "panel-name").attr("x", -left + 4).attr("y", -30),
            `d_k = ${one.dk}${one.gain === 1 ? "" : `, q·k × ${exact(one.gain)}`}`);
        y_axis(g, y, wide, k === 0 ? measures.find((m) => m.id === what).label : "");
        x_axis(g, x, plot, "format of the scores", {width: wide, format: (f) => f});
        for (const p of points) {
          if (!isNumber(p[what]) || (y.base && p[what] <= 0)) continue;
          const px = x(p.dtype) + within(p.rule);
          g.append("line")
              .attr("x1", px)
              .attr("x2", px)
              .attr("y1", plot)
              .attr("y2", y(p[what]))
              .attr("stroke", style_of(p.rule).colour)
              .attr("stroke-width", 2)
              .attr("stroke-opacity", 0.5);
          mark(symbol(g, style_of(p.rule), px, y(p[what]), 72), ref(p, what), "ty");
          stage.spot(dx + left + px, dy + y(p[what]), `${p.rule} in ${p.dtype}, d_k = ${p.dk}`, [
            ["mean largest weight", put(digits(4), p, "p_max")], ["rows above 0.99", put(percent, p, "share_p_max_over_99pct")],
            ["rows overflowed", put(percent, p, "share_rows_overflow")], ["weight at wrong keys", ref(p, "p_total_variation")],
            ["bits of signal", ref(p, "signal_bits")]
          ]);
        }
      });
      return grid.rows * each;
    },
  });
  const rows = table(
      "f64 beside the formats that round",
      [
        {title: "rule", left: true}, {title: "format", left: true}, "d_k", "q·k times",
        {title: "largest weight", kind: "measured"}, "rows above 0.99", "overflow", "error of scores", "weight misplaced",
        "signal bits"
      ],
      data.points.map(
          (p) =>
              [ref(p, "rule"), ref(p, "dtype"), put(exact, p, "dk"), put(exact, p, "gain"), put(digits(4), p, "p_max"),
               put(percent, p, "share_p_max_over_99pct"), put(percent, p, "share_rows_overflow"), ref(p, "score_rms_error"),
               ref(p, "p_total_variation"), ref(p, "signal_bits")]));
  return {figure, below: [all_numbers("All numbers", rows)]};
};
