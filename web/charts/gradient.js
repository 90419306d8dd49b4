// What backward brings: quantiles of the lengths of gradient rows, by rule and d_k.

experiments.gradient = (data) => {
  const places = [
    {id: "scores", label: "at the scores, ‖dS‖"}, {id: "queries", label: "at the queries, ‖dQ‖"},
    {id: "keys", label: "at the keys, ‖dK‖"}
  ];
  const sizes = unique(data.points.map((p) => p.dk));
  const names = ["0.01", "0.05", "0.25", "0.5", "0.75", "0.95", "0.99"];
  const series = rule_series(data.points.map((p) => p.rule));
  const quantiles = chart({
    label: "Quantiles of gradient lengths, on a logarithmic axis, by d_k and rule.",
    series,
    choices: {Gradient: places},
    caption: [
      "Lengths of gradient rows: thin line 1 % to 99 %, thick 25 % to 75 %, symbol the median, × beside it the mean. ",
      put(exact, data, "batches"), " × ", put(exact, data, "queries"), " queries on ", put(exact, data, "keys"), " keys."
    ],
    draw(stage) {
      const where = stage.chosen.Gradient, rules = stage.visible.map((s) => s.id);
      const points = data.points.filter((p) => rules.includes(p.rule));
      const left = 46, top = 30, right = 8, plot = stage.narrow ? 260 : 300, wide = stage.width - left - right;
      const all = points.flatMap((p) => [...Object.values(p[where].quantiles), p[where].mean]).filter((v) => v > 0);
      const y = d3.scaleLog().domain([d3.min(all) / 1.6, d3.max(all) * 1.6]).range([plot, 0]);
      const at = (v) => y(Math.max(v, y.domain()[0]));
      const x = d3.scaleBand().domain(sizes).range([0, wide]).padding(0.2),
            within = d3.scalePoint().domain(rules).range([0, x.bandwidth()]).padding(0.5);
      const g = scaled(stage.svg.append("g").attr("transform", `translate(${left},${top})`), y);
      y_axis(g, y, wide, "length of a gradient row");
      x_axis(g, x, plot, "d_k", {width: wide});
      for (const p of points) {
        const style = style_of(p.rule), q = p[where].quantiles, px = x(p.dk) + within(p.rule);
        for (const [a, b, thick, opacity] of [["0.01", "0.99", 1.5, 1], ["0.05", "0.95", 4, 0.45], ["0.25", "0.75", 10, 0.45]])
          g.append("line")
              .attr("x1", px)
              .attr("x2", px)
              .attr("y1", at(q[a]))
              .attr("y2", at(q[b]))
              .attr("stroke", style.colour)
              .attr("stroke-width", thick)
              .attr("stroke-opacity", opacity);
        mark(
            symbol(g, style, px, at(q["0.5"]), 80).attr("stroke", "var(--card)"), ref(p, where, "quantiles", "0.5"),
            q["0.5"] > 0 ? "ty" : null);
        mark(
            g.append("path")
                .attr("d", "M-3.5,-3.5L3.5,3.5M-3.5,3.5L3.5,-3.5")
                .attr("transform", `translate(${px + 9},${at(p[where].mean)})`)
                .attr("stroke", "var(--ink)")
                .attr("stroke-width", 1.8),
            ref(p, where, "mean"), "ty");
        stage.spot(left + px, top + at(q["0.5"]), `${p.rule}, d_k = ${p.dk}`, [
          ...names.map((name) => [`${Number(name) * 100} % quantile`, ref(p, where, "quantiles", name)]),
          ["mean", ref(p, where, "mean")], ["mean square", ref(p, where, "mean_square", "value")],
          ...(isNumber(p[where].mean_square.theory) ? [["predicted", ref(p, where, "mean_square", "theory")]] : [])
        ]);
      }
      return top + plot + 42;
    },
  });
  const closed = chart({
    label: "Share of rows whose softmax lets hardly any gradient through, by d_k and rule.",
    series,
    caption: "Rows in which softmax is shut: tr J below 0.01.",
    draw(stage) {
      const rules = stage.visible.map((s) => s.id), points = data.points.filter((p) => rules.includes(p.rule));
      const left = 46, top = 26, right = 8, plot = stage.narrow ? 130 : 300, wide = stage.width - left - right;
      const y =
          d3.scaleLinear().domain([0, Math.max(0.1, 1.15 * d3.max(data.points, (p) => p["share_trace_j_under_1pct"]))]).range([
            plot, 0
          ]);
      const x = d3.scaleBand().domain(sizes).range([0, wide]).padding(0.2),
            within = d3.scaleBand().domain(rules).range([0, x.bandwidth()]).padding(0.15);
      const g = scaled(stage.svg.append("g").attr("transform", `translate(${left},${top})`), y);
      y_axis(g, y, wide, "share of rows", 4, percent_tick);
      x_axis(g, x, plot, "d_k", {width: wide});
      for (const p of points) {
        const value = p["share_trace_j_under_1pct"], px = x(p.dk) + within(p.rule), middle = px + within.bandwidth() / 2;
        mark(
            g.append("rect")
                .attr("x", px)
                .attr("width", within.bandwidth())
                .attr("y", y(value))
                .attr("height", plot - y(value))
                .attr("fill", style_of(p.rule).colour),
            ref(p, "share_trace_j_under_1pct"), "height");
        symbol(g, style_of(p.rule), middle, y(value) - 6, 26);
        if (value > 0)
          g.append("text")
              .attr("class", "halo")
              .attr("x", middle)
              .attr("y", y(value) - 14)
              .attr("text-anchor", "middle")
              .style("font-size", "11px")
              .text(percent(value));
        stage.spot(left + middle, top + y(value), `${p.rule}, d_k = ${p.dk}`, [
          ["rows with tr J below 0.01", put(percent, p, "share_trace_j_under_1pct")],
          ["mean tr J", ref(p, "trace_j", "value")], ["predicted", ref(p, "trace_j", "theory")],
          ["median tr J", ref(p, "trace_j", "median")]
        ]);
      }
      return top + plot + 42;
    },
  });
  const measured = table(
      "Measured beside predicted: mean ‖dS‖² and E‖J‖², mean tr J",
      [
        {title: "rule", left: true}, "d_k", {title: "mean ‖dS‖²", kind: "measured"}, "95 % interval",
        {title: "predicted", kind: "predicted"}, {title: "mean tr J", kind: "measured"}, {title: "predicted", kind: "predicted"},
        "median tr J", "tr J below 0.01"
      ],
      data.points.map(
          (p) =>
              [ref(p, "rule"), put(exact, p, "dk"), ref(p, "scores", "mean_square", "value"),
               interval(p.scores.mean_square, "ci95"), ref(p, "scores", "mean_square", "theory"),
               ref(p, "trace_j", "value"), ref(p, "trace_j", "theory"), ref(p, "trace_j", "median"),
               put(percent, p, "share_trace_j_under_1pct")]));
  const everything = places.map(
      (place) => table(
          `Lengths of gradient rows ${place.label}`,
          [{title: "rule", left: true}, "d_k", ...names.map((name) => `${Number(name) * 100} %`), "mean", "mean square"],
          data.points.map(
              (p) =>
                  [ref(p, "rule"), put(exact, p, "dk"), ...names.map((name) => ref(p, place.id, "quantiles", name)),
                   ref(p, place.id, "mean"), ref(p, place.id, "mean_square", "value")])));
  return {
    figure: el("div", {class: "pair"}, quantiles, closed),
    wide: true,
    below: [measured, all_numbers("All numbers: quantiles", ...everything)]
  };
};
