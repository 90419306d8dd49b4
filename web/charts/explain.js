// One row of scores: softmax under each rule, as bars.

experiments.explain = (data) => {
  const series = rule_series(data.rules.map((r) => r.rule));
  const figure = chart({
    label: "Bars: what softmax makes of the same scores under each rule.",
    series,
    choices: {
      Show: [
        {id: "softmax", label: "weights after softmax"}, {id: "score_gradient", label: "gradient at the scores"},
        {id: "raw_gradient", label: "gradient at q·k"}
      ]
    },
    caption: [
      "Keys in order, with q·k beneath. Gradients start as ",
      data.upstream_gradient.flatMap((_, j) => [j ? ", " : "", put(exact, data, "upstream_gradient", j)]), " on the weights."
    ],
    draw(stage) {
      const rules = data.rules.filter((r) => stage.visible.some((s) => s.id === r.rule));
      const grid = panels(rules.length, {width: stage.width, least: 190, gap: 22});
      const top = 44, bottom = 46, plot = 190, each = top + plot + bottom;
      const values = rules.flatMap((r) => r[stage.chosen.Show]);
      const weights = stage.chosen.Show === "softmax";
      const y =
          d3.scaleLinear().domain(weights ? [0, 1] : [Math.min(0, d3.min(values)), Math.max(0, d3.max(values))]).range([plot, 0]);
      if (!weights) y.nice(4);
      const left = Math.max(44, room_for(y, 4));
      rules.forEach((rule, r) => {
        const [dx, line] = grid.at(r), dy = line * each + top;
        const g = scaled(stage.svg.append("g").attr("transform", `translate(${dx + left},${dy})`), y);
        const x = d3.scaleBand().domain(d3.range(data.raw_scores.length)).range([0, grid.each - left]).padding(0.28);
        y_axis(g, y, grid.each - left, "", 4);
        label_text(g.append("text").attr("class", "panel-name").attr("x", -left + 4).attr("y", -26), style_of(rule.rule).label);
        rule[stage.chosen.Show].forEach((value, j) => {
          const height = Math.abs(y(value) - y(0));
          mark(
              g.append("rect")
                  .attr("x", x(j))
                  .attr("width", x.bandwidth())
                  .attr("y", Math.min(y(value), y(0)))
                  .attr("height", height)
                  .attr("fill", style_of(rule.rule).colour)
                  .attr("rx", Math.min(2, height / 2)),
              ref(rule, stage.chosen.Show, j), "height");
          g.append("text")
              .attr("class", "halo")
              .attr("x", x(j) + x.bandwidth() / 2)
              .attr("y", (value < 0 ? y(value) + 14 : y(value) - 5))
              .attr("text-anchor", "middle")
              .style("font-size", x.bandwidth() < 64 ? "11px" : null)
              .text(number(
                  value,
                  Math.abs(value) < 1e-4 ? (x.bandwidth() >= 64 ? 3 : 1) : x.bandwidth() >= 44 ? 3 : 2));
          stage.spot(dx + left + x(j) + x.bandwidth() / 2, dy + y(value), `${rule.rule}, key ${j + 1}`, [
            ["q·k", put(exact, data, "raw_scores", j)], ["score c·q·k", ref(rule, "scores", j)],
            ["e^score", put(digits(5), rule, "exp", j)], ["weight", ref(rule, "softmax", j)],
            ["gradient at score", ref(rule, "score_gradient", j)], ["gradient at q·k", ref(rule, "raw_gradient", j)]
          ], {bar: {half: x.bandwidth() / 2, base: dy + y(0)}});
        });
        g.append("line").attr("class", "reference").attr("x2", grid.each - left).attr("y1", y(0)).attr("y2", y(0));
        x_axis(g, x, plot, r === 0 ? "q·k of each key" : "", {width: grid.each - left, format: (j) => exact(data.raw_scores[j])});
      });
      return grid.rows * each;
    },
  });
  const summary = table(
      "Computed row by row, under each rule",
      [{title: "rule", left: true}, "divide by", "largest weight", "entropy", "effective keys", "sum of e^score", "tr J", "‖J‖²"],
      data.rules.map(
          (r) =>
              [ref(r, "rule"), put(exact, r, "divisor"), put(digits(4), r, "p_max"), ref(r, "entropy"), ref(r, "effective_keys"),
               put(digits(5), r, "exp_sum"), ref(r, "trace_j"), ref(r, "frobenius_j")]));
  const each_key = data.rules.map(
      (r) => table(
          `Under ${r.rule}`, ["key", "score", "e^score", "softmax", "gradient at score", "gradient at q·k"],
          r.scores.map(
              (_, j) =>
                  [String(j + 1), put(digits(4), r, "scores", j), put(digits(8), r, "exp", j), put(digits(4), r, "softmax", j),
                   ref(r, "score_gradient", j), ref(r, "raw_gradient", j)])));
  const jacobians = data.rules.filter((r) => r.jacobian)
                        .map(
                            (r) => table(
                                `Jacobian ∂p_i/∂s_j under ${r.rule}`, ["i", ...r.jacobian[0].map((_, j) => `j = ${j + 1}`)],
                                r.jacobian.map((line, a) => [String(a + 1), ...line.map((_, b) => ref(r, "jacobian", a, b))])));
  return {figure, wide: true, below: [summary, all_numbers("Every step, key by key", ...each_key, ...jacobians)]};
};
