// Initialisers: the divisor that would give unit variance, predicted and measured, against √d_k.

experiments.init = (data) => {
  const name = (r) => `${r.init}, width ${r.width}`;
  const styles = {
    measured: {colour: "var(--rule-sqrt_dk)", symbol: d3.symbolCircle, dash: "0 99"},
    predicted: {colour: "var(--rule-none)", symbol: d3.symbolDiamond, dash: "0 99"},
    root: {colour: "var(--soft)", symbol: d3.symbolWye, dash: "2 3"}
  };
  const figure = chart({
    label: "The divisor that gives unit variance under each initialiser, predicted and measured, beside the root of d_k.",
    series: [
      {id: "measured", label: "measured", style: styles.measured}, {id: "predicted", label: "predicted", style: styles.predicted},
      {id: "root", label: "√d_k", style: styles.root}
    ],
    caption: "The nearer to the dotted √d_k, the better the textbook's divisor fits.",
    draw(stage) {
      const beside = stage.width > 480, left = beside ? 20 + 6.2 * d3.max(data.rows, (r) => name(r).length) : 8;
      const top = 8, line = beside ? 28 : 44, plot = line * data.rows.length, right = 16, wide = stage.width - right - left;
      const values = data.rows.flatMap((r) => [r.predicted_divisor, r.measured_divisor, r.sqrt_dk]).filter((v) => v > 0);
      const x = d3.scaleLog().domain([d3.min(values) / 1.4, d3.max(values) * 1.4]).range([0, wide]);
      const g = scaled(stage.svg.append("g").attr("transform", `translate(${left},${top})`), x);
      g.append("g")
          .attr("class", "grid")
          .selectAll("line")
          .data(ticks_of(x, 8))
          .join("line")
          .attr("x1", x)
          .attr("x2", x)
          .attr("y2", plot);
      x_axis(g, x, plot, "divisor for unit variance", {values: ticks_of(x, 8), width: wide});
      const on = (id) => stage.visible.some((s) => s.id === id);
      data.rows.forEach((r, k) => {
        const y = k * line + (beside ? 14 : 32), measured = x(r.measured_divisor);
        if (k && r.init !== data.rows[k - 1].init)
          g.append("line").attr("stroke", "var(--line)").attr("x1", beside ? 8 - left : 0).attr("x2", wide).attr("y1", k * line).attr("y2", k * line);
        g.append("text").attr("class", "quiet").attr("x", beside ? -10 : 2).attr("y", beside ? y + 4 : y - 18)
            .attr("text-anchor", beside ? "end" : "start").text(name(r));
        g.append("line").attr("stroke", "var(--grid)").attr("x2", wide).attr("y1", y).attr("y2", y);
        if (on("root"))
          mark(
              g.append("line")
                  .attr("class", "reference")
                  .attr("x1", x(r.sqrt_dk))
                  .attr("x2", x(r.sqrt_dk))
                  .attr("y1", y - 13)
                  .attr("y2", y + 13),
              ref(r, "sqrt_dk"), "x1");
        if (on("predicted"))
          mark(
              symbol(g, styles.predicted, x(r.predicted_divisor), y, 150)
                  .attr("fill", "none")
                  .attr("stroke", styles.predicted.colour)
                  .attr("stroke-width", 2),
              ref(r, "predicted_divisor"), "tx");
        if (on("measured")) {
          const [a, b] = r.variance.ci95.map((v) => x(Math.sqrt(Math.max(v, 1e-12))));
          g.append("line")
              .attr("x1", a)
              .attr("x2", b)
              .attr("y1", y)
              .attr("y2", y)
              .attr("stroke", styles.measured.colour)
              .attr("stroke-width", 4);
          mark(symbol(g, styles.measured, measured, y, 44), ref(r, "measured_divisor"), "tx");
        }
        stage.spot(left + measured, top + y, name(r), [
          ["measured divisor", put(digits(4), r, "measured_divisor")], ["predicted", put(digits(4), r, "predicted_divisor")],
          ["from the weights", put(digits(4), r, "divisor_from_weights")], ["√d_k", put(digits(4), r, "sqrt_dk")],
          ["spread after /√d_k", put(digits(4), r, "spread_after_sqrt_dk")]
        ]);
      });
      return top + plot + 42;
    },
  });
  const rows = table(
      "Measured beside predicted",
      [
        {title: "initialiser", left: true}, "width", "d_k", "√d_k", {title: "measured divisor", kind: "measured"},
        {title: "predicted", kind: "predicted"}, "from the weights", "variance", "95 % interval", "spread after /√d_k"
      ],
      data.rows.map(
          (r) =>
              [ref(r, "init"), put(exact, r, "width"), put(exact, r, "dk"), put(digits(4), r, "sqrt_dk"),
               put(digits(4), r, "measured_divisor"), put(digits(4), r, "predicted_divisor"),
               put(digits(4), r, "divisor_from_weights"), put(digits(4), r, "variance", "value"),
               interval(r.variance, "ci95", digits(4)), put(digits(4), r, "spread_after_sqrt_dk")]));
  return {figure, below: [rows]};
};
