// Softmax over d_k × keys as a heat map, measured above predicted in each cell, and the line beyond which it freezes.

/// For a cell: three decimals, fewer digits where they would all be 0.
const brief = (x) => (!isNumber(x) ? "–" : Math.abs(x) < 0.001 && x !== 0 ? number(x, 1) : x.toFixed(Math.abs(x) < 1 ? 3 : 2));

experiments.phase = (data) => {
  const measures = [
    {id: "p_max", label: "largest weight", bar: "largest weight (a share)", low: "all keys alike", high: "one key takes all"},
    {id: "entropy", label: "entropy", bar: "entropy (nats)", low: "one key takes all", high: "all keys alike"},
    {id: "trace_j", label: "tr J: gradient let through", bar: "tr J (a share)", low: "no gradient comes through", high: "open"}
  ];
  const sizes = unique(data.points.map((p) => p.dk)), lengths = unique(data.points.map((p) => p.keys));
  const figure = chart({
    label:
        "Heat map of softmax over d_k and the number of keys, one panel for each rule; a line parts frozen cells from the others.",
    series: rule_series(data.points.map((p) => p.rule)),
    choices: {Show: measures},
    caption: [
      "In each cell: measured, beneath it what theory predicts. Cells with a filled corner are frozen, σ > σ_c; the thick line parts them from the others. Means over ",
      put(exact, data, "batches"), " × ", put(exact, data, "queries"), " queries."
    ],
    draw(stage) {
      const what = stage.chosen.Show;
      const rules = stage.visible.map((s) => s.id);
      const grid = panels(rules.length, {width: stage.width, least: 262, gap: 26});
      const measure = measures.find((m) => m.id === what), unscaled = rules.includes("none");
      const most = d3.max(data.points.flatMap((p) => [p[what].value, p[what].theory]).filter(isNumber));
      const scale = from_to(0, what === "entropy" ? Math.max(most, Math.log(d3.max(lengths))) : 1, measure), {colour} = scale;
      const above = colour_bar(stage.svg, scale, {x: 46, width: Math.min(stage.width - 48, 420), name: measure.bar}) + 14;
      const top = above + 26, bottom = unscaled ? 66 : 48, left = 46, cell = 42, plot = cell * sizes.length;
      const each = 26 + plot + bottom;
      rules.forEach((rule, k) => {
        const [dx, line] = grid.at(k), dy = line * each + top, wide = grid.each - left;
        const g = stage.svg.append("g").attr("transform", `translate(${dx + left},${dy})`);
        const x = d3.scaleBand().domain(lengths).range([0, wide]), y = d3.scaleBand().domain(sizes).range([plot, 0]);
        label_text(g.append("text").attr("class", "panel-name").attr("x", 0).attr("y", -10), style_of(rule).label);
        const cells = data.points.filter((one) => one.rule === rule);
        for (const p of cells)
          mark(
              g.append("rect")
                  .attr("class", "mapped")
                  .attr("x", x(p.keys) + 1.5)
                  .attr("y", y(p.dk) + 1.5)
                  .attr("width", x.bandwidth() - 3)
                  .attr("height", cell - 3)
                  .attr("fill", colour(p[what].value)),
              ref(p, what, "value"));
        for (const name of ["freezes-edge", "freezes"]) g.append("path").attr("class", name).attr("d", frozen_edges(cells, x, y));
        if (rule === "none") critical_numbers(g, data, x, plot);
        for (const p of cells) {
          const fill = colour(p[what].value), ink = readable_on(fill), cx = x(p.keys) + x.bandwidth() / 2,
                cy = y(p.dk) + cell / 2;
          const words = () => g.append("text").attr("class", "in-cell").attr("x", cx).style("fill", ink);
          const small = x.bandwidth() < 50;
          words().attr("y", cy - 1).style("font-weight", 600).style("font-size", small ? "11px" : null).text(brief(p[what].value));
          words().attr("y", cy + 14).style("font-size", "10.5px").text(brief(p[what].theory));
          if (p.frozen)
            g.append("path")
                .attr("d", "M0,0h7l-7,7z")
                .attr("transform", `translate(${x(p.keys) + 1.5},${y(p.dk) + 1.5})`)
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
      return above + grid.rows * each;
    },
  });
  const rows = (points) => points.map(
      (p) =>
          [ref(p, "rule"), put(exact, p, "dk"), put(exact, p, "keys"), ref(p, "sigma"), ref(p, "critical_sigma"),
           ref(p, "frozen"),
           ...["p_max", "entropy", "trace_j"].flatMap(
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

/// Along the edges between a frozen cell and its neighbour that is not.
function frozen_edges(cells, x, y) {
  const wide = x.bandwidth(), tall = y.bandwidth();
  const at = (keys, dk) => cells.find((p) => p.keys === keys && p.dk === dk);
  const next = (list, value) => list[list.indexOf(value) + 1];
  return cells.map((p) => {
    const right = at(next(x.domain(), p.keys), p.dk), above = at(p.keys, next(y.domain(), p.dk));
    return (right && right.frozen !== p.frozen ? `M${x(p.keys) + wide},${y(p.dk)}v${tall}` : "") +
        (above && above.frozen !== p.frozen ? `M${x(p.keys)},${y(p.dk)}h${wide}` : "");
  }).join("");
}

/// Under the axis: beyond which d_k unscaled scores freeze on so many keys.
function critical_numbers(g, data, x, plot) {
  const y = plot + 50;
  g.append("text").attr("class", "axis-name").attr("x", -8).attr("y", y).attr("text-anchor", "end").text("2 ln n");
  for (const c of data.critical_line)
    if (x(c.keys) !== undefined)
      mark(g.append("text").attr("class", "quiet").attr("x", x(c.keys) + x.bandwidth() / 2).attr("y", y).attr("text-anchor", "middle")
               .text(number(c.dk, 2)), ref(c, "dk"));
}
