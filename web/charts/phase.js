// Softmax over d_k × keys as a heat map, measured above predicted in each cell, and the line beyond which it freezes.

const readable_on = (colour) => {
  const c = d3.rgb(colour);
  return 0.299 * c.r + 0.587 * c.g + 0.114 * c.b > 128 ? "#000" : "#fff";
};

/// For a cell: three decimals, fewer digits where they would all be 0.
const brief = (x) => (!isNumber(x) ? "–" : Math.abs(x) < 0.001 && x !== 0 ? number(x, 1) : x.toFixed(Math.abs(x) < 1 ? 3 : 2));

experiments.phase = (data) => {
  const measures = [
    {id: "p_max", label: "largest weight"}, {id: "entropy", label: "entropy (nats)"},
    {id: "trace_jacobian", label: "tr J: gradient let through"}
  ];
  const sizes = unique(data.points.map((p) => p.dk)), lengths = unique(data.points.map((p) => p.keys));
  const figure = chart({
    label:
        "Heat map of softmax over d_k and the number of keys, one panel for each rule, with the critical line for unscaled scores.",
    series: rule_series(data.points.map((p) => p.rule)),
    choices: {Show: measures},
    caption: [
      "In each cell: measured, beneath it what theory predicts. A filled corner marks frozen points, beyond the white line d_k = 2 ln n. Means over ",
      put(exact, data, "batches"), " × ", put(exact, data, "queries"), " queries."
    ],
    draw(stage) {
      const what = stage.chosen.Show;
      const rules = stage.visible.map((s) => s.id);
      const grid = panels(rules.length, {width: stage.width, least: 262, gap: 26});
      const top = 26, bottom = 48, left = 34, cell = 42, plot = cell * sizes.length, each = top + plot + bottom;
      const values = data.points.flatMap((p) => [p[what].value, p[what].theory]);
      const colour =
          d3.scaleSequential(d3.interpolateCividis).domain(what === "entropy" ? [0, d3.max(values.filter(isNumber))] : [0, 1]);
      rules.forEach((rule, k) => {
        const [dx, line] = grid.at(k), dy = line * each + top, wide = grid.each - left;
        const g = stage.svg.append("g").attr("transform", `translate(${dx + left},${dy})`);
        const x = d3.scaleBand().domain(lengths).range([0, wide]), y = d3.scaleBand().domain(sizes).range([plot, 0]);
        label_text(g.append("text").attr("class", "panel-name").attr("x", 0).attr("y", -10), style_of(rule).label);
        const cells = data.points.filter((one) => one.rule === rule);
        for (const p of cells)
          mark(
              g.append("rect")
                  .attr("x", x(p.keys) + 0.5)
                  .attr("y", y(p.dk) + 0.5)
                  .attr("width", x.bandwidth() - 1)
                  .attr("height", cell - 1)
                  .attr("fill", colour(p[what].value)),
              ref(p, what, "value"));
        if (rule === "none") critical_line(g, data, x, y, sizes, lengths);
        for (const p of cells) {
          const fill = colour(p[what].value), ink = readable_on(fill), cx = x(p.keys) + x.bandwidth() / 2,
                cy = y(p.dk) + cell / 2;
          const words = () => g.append("text")
                                  .attr("x", cx)
                                  .attr("text-anchor", "middle")
                                  .style("fill", ink)
                                  .style("paint-order", "stroke")
                                  .style("stroke", fill)
                                  .style("stroke-width", "3px");
          words().attr("y", cy - 1).style("font-weight", 600).text(brief(p[what].value));
          words().attr("y", cy + 14).style("font-size", "10.5px").text(brief(p[what].theory));
          if (p.frozen)
            g.append("path")
                .attr("d", "M0,0h9l-9,9z")
                .attr("transform", `translate(${x(p.keys) + 1},${y(p.dk) + 1})`)
                .style("fill", ink);
          stage.spot(dx + left + cx, dy + cy, `${rule}, d_k = ${p.dk}, ${p.keys} keys`, [
            [measures.find((m) => m.id === what).label, ref(p, what, "value")], ["95 % interval", interval(p[what], "ci95")],
            ["theory", ref(p, what, "theory")], ["spread σ", ref(p, "sigma")], ["critical σ", ref(p, "critical_sigma")]
          ]);
        }
        x_axis(g, x, plot, "n, keys", {width: wide});
        g.append("g").attr("class", "axis").call(d3.axisLeft(y).tickSize(0).tickPadding(6)).select(".domain").remove();
        label_text(
            g.append("text").attr("class", "axis-name").attr("x", -8).attr("y", plot + 16).attr("text-anchor", "end"), "d_k");
      });
      return grid.rows * each;
    },
  });
  const rows = (points) => points.map(
      (p) =>
          [ref(p, "rule"), put(exact, p, "dk"), put(exact, p, "keys"), ref(p, "sigma"), ref(p, "critical_sigma"),
           ref(p, "frozen"),
           ...["p_max", "entropy", "trace_jacobian"].flatMap(
               (m) => [ref(p, m, "value"), interval(p[m], "ci95"), ref(p, m, "theory")])]);
  const columns = [
    {title: "rule", left: true}, "d_k", "keys", "σ", "critical σ", "frozen",
    ...["largest weight", "entropy", "tr J"].flatMap(
        (m) => [{title: m, kind: "measured"}, "95 % interval", {title: "predicted", kind: "predicted"}])
  ];
  return {
    figure,
    wide: true,
    below: [all_numbers(
        "All numbers", table("Every point: measured, its interval, and the prediction", columns, rows(data.points)),
        table(
            "The critical line", ["keys n", "d_k = 2 ln n"],
            data.critical_line.map((c) => [put(exact, c, "keys"), put(digits(4), c, "dk")])))]
  };
};

/// Between the middles of cells the axes are logarithmic, as sizes and lengths are.
function critical_line(g, data, x, y, sizes, lengths) {
  const middles = (values, scale) => d3.scaleLog().domain(values).range(values.map((v) => scale(v) + scale.bandwidth() / 2));
  if (sizes.length < 2 || lengths.length < 2) return;
  const across = middles(lengths, x), along = middles(sizes, y);
  const points = data.critical_line.filter((c) => c.dk > 0).map((c) => [across(c.keys), along(c.dk)]);
  for (const name of ["critical-edge", "critical"]) g.append("path").attr("class", name).attr("d", d3.line()(points));
  data.critical_line.forEach(
      (c) => mark(
          g.append("circle")
              .attr("cx", across(c.keys))
              .attr("cy", along(c.dk))
              .attr("r", 3.2)
              .attr("fill", "#fff")
              .attr("stroke", "#000"),
          ref(c, "dk")));
}
