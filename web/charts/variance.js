// Var(q·k) against d_k: after no division, by √d_k and by d_k; and how near measurement and formula are.

experiments.variance = (data) => {
  const kinds = unique(data.rows.map((r) => r.distribution));
  const sizes = unique(data.rows.map((r) => r.dk)).sort(d3.ascending);
  const fields = {none: "variance", sqrt_dk: "variance_over_sqrt_dk", dk: "variance_over_dk"};
  const general = data.mean !== 0 || data.correlation !== 0;
  const after = {none: () => 1, sqrt_dk: (d) => d, dk: (d) => d * d};
  const one_kind = data.rows.filter((r) => r.distribution === kinds[0]);

  const curves = chart({
    label: "Variance of q·k against d_k, on logarithmic axes, undivided and divided by the root of d_k and by d_k.",
    series: rule_series(Object.keys(fields)),
    choices: kinds.length > 1 ? {Components: kinds.map((id) => ({id, label: id}))} : {},
    caption: [
      "Marks are measured over ", put(exact, data, "pairs"),
      " pairs, with 95 % intervals (most are smaller than the marks); dotted lines are the formula."
    ],
    draw(stage) {
      const rows = data.rows.filter((r) => r.distribution === (stage.chosen.Components || kinds[0]));
      const left = 52, top = 30, right = 66, plot = stage.narrow ? 250 : 300, wide = stage.width - left - right;
      const values = rows.flatMap((r) => stage.visible.map((s) => r[fields[s.id]]));
      const x = d3.scaleLog().domain(d3.extent(sizes)).range([14, wide - 14]);
      const [a, b] = extent(values);
      const y = d3.scaleLog().domain([Math.min(a, 0.9) / 6, Math.max(b, 1.1) * 1.5]).range([plot, 0]);
      const g = scaled(stage.svg.append("g").attr("transform", `translate(${left},${top})`), y);
      y_axis(g, y, wide, "variance of the scores");
      x_axis(g, x, plot, "d_k", {values: sizes, width: wide});
      for (const s of stage.visible) {
        g.append("path")
            .attr("class", "reference")
            .attr("stroke", s.style.colour)
            .attr("d", d3.line().x((r) => x(r.dk)).y((r) => y(r.expected / after[s.id](r.dk)))(rows))
            .style("stroke", s.style.colour);
        for (const r of rows) {
          if (s.id === "none")
            g.append("line")
                .attr("x1", x(r.dk))
                .attr("x2", x(r.dk))
                .attr("y1", y(r.ci95[0]))
                .attr("y2", y(r.ci95[1]))
                .attr("stroke", s.style.colour)
                .attr("stroke-width", 3);
          mark(symbol(g, s.style, x(r.dk), y(r[fields[s.id]]), 84), ref(r, fields[s.id]), "ty");
          stage.spot(left + x(r.dk), top + y(r[fields[s.id]]), `${r.distribution}, d_k = ${r.dk}`, [
            ["variance", put(digits(5), r, "variance")], ["95 % interval", interval(r, "ci95", digits(5))],
            ["expected", put(digits(5), r, "expected")], ["after /√d_k", put(digits(4), r, "variance_over_sqrt_dk")],
            ["after /d_k", put(digits(4), r, "variance_over_dk")]
          ]);
        }
      }
      const last = rows[rows.length - 1], ends = stage.visible.map((s) => y(last[fields[s.id]]));
      apart(ends, 17, 0, plot).forEach((at, i) => label_text(
          g.append("text").attr("x", wide - 2).attr("y", at + 4),
          {none: "q·k", sqrt_dk: "q·k / √d_k", dk: "q·k / d_k"}[stage.visible[i].id]));
      return top + plot + 42;
    },
  });

  const kind_style = (kind) => ({
    ...Object.values(known_rules)[kinds.indexOf(kind) % 3],
    symbol: [d3.symbolCircle, d3.symbolDiamond, d3.symbolSquare, d3.symbolTriangle, d3.symbolCross][kinds.indexOf(kind) % 5],
    colour: `var(--rule-${["sqrt_dk", "3", "4", "dk", "6"][kinds.indexOf(kind) % 5]})`,
    dash: "0 99"
  });
  const ratios = chart({
    label: "Measured variance over the expected one, with 95 % intervals, by d_k and distribution of the components.",
    series: kinds.length > 1 ? kinds.map((id) => ({id, label: id, style: kind_style(id)})) : [],
    caption: "Measured over expected, with 95 % intervals: one in twenty should miss the line.",
    draw(stage) {
      const shown_kinds = kinds.length > 1 ? stage.visible.map((s) => s.id) : kinds;
      const rows = data.rows.filter((r) => shown_kinds.includes(r.distribution));
      const left = 46, top = 30, right = 12, plot = stage.narrow ? 170 : 245, wide = stage.width - left - right;
      const x = d3.scaleBand().domain(sizes).range([0, wide]).padding(0.25);
      const within = d3.scalePoint().domain(shown_kinds).range([0, x.bandwidth()]).padding(0.5);
      const reach = 1.1 * d3.max(rows, (r) => Math.max(r.ci95[1] / r.expected - 1, 1 - r.ci95[0] / r.expected));
      const y = d3.scaleLinear().domain([1 - reach, 1 + reach]).range([plot, 0]);
      const g = stage.svg.append("g").attr("transform", `translate(${left},${top})`);
      y_axis(g, y, wide, "measured ÷ expected", 5);
      x_axis(g, x, plot, "d_k", {width: wide});
      g.append("line").attr("class", "reference").attr("x2", wide).attr("y1", y(1)).attr("y2", y(1));
      for (const r of rows) {
        const at = x(r.dk) + within(r.distribution), style = kind_style(r.distribution);
        g.append("line")
            .attr("x1", at)
            .attr("x2", at)
            .attr("y1", y(r.ci95[0] / r.expected))
            .attr("y2", y(r.ci95[1] / r.expected))
            .attr("stroke", style.colour)
            .attr("stroke-width", 2);
        mark(symbol(g, style, at, y(r.variance / r.expected), stage.narrow ? 26 : 46), ref(r, "variance"));
        stage.spot(left + at, top + y(r.variance / r.expected), `${r.distribution}, d_k = ${r.dk}`, [
          ["variance", put(digits(5), r, "variance")], ["95 % interval", interval(r, "ci95", digits(5))],
          ["expected", put(digits(5), r, "expected")]
        ]);
      }
      return top + plot + 42;
    },
  });

  const columns = [
    {title: "d_k"}, {title: "measured variance", kind: "measured"}, "95 % interval", {title: "predicted", kind: "predicted"},
    "after /√d_k", "after /d_k"
  ];
  const cells = (r) =>
      [put(digits(5), r, "variance"), interval(r, "ci95", digits(5)), put(digits(5), r, "expected"),
       put(digits(4), r, "variance_over_sqrt_dk"), put(digits(3), r, "variance_over_dk")];
  const below = [table(
      `Measured beside predicted: components ${kinds[0]}`, columns, one_kind.map((r) => [put(exact, r, "dk"), ...cells(r)]))];
  if (data.square_terms.length === 9)
    below.push(el("h3", {}, "Where the sum comes from: the nine terms of (q₁k₁ + q₂k₂ + q₃k₃)²"), nine_terms(data));
  const d = data.division;
  below.push(el(
      "p", {class: "note"}, "Dividing by c divides the variance by c²: [",
      d.numbers.flatMap((_, j) => [j ? ", " : "", put(exact, d, "numbers", j)]), "] has variance ", ref(d, "variance"), "; over ",
      put(exact, d, "divisor"), " it has ", ref(d, "variance_divided"), ", ", put(exact, d, "ratio"), " times less."));
  below.push(all_numbers(
      "All numbers",
      table(
          "Every size and distribution", [{title: "components", left: true}, ...columns, "mean of q·k", "expected mean"],
          data.rows.map(
              (r) =>
                  [ref(r, "distribution"), put(exact, r, "dk"), ...cells(r), ref(r, "mean"), put(exact, r, "mean_expected")]))));
  return {
    figure: el("div", {class: "pair"}, curves, ratios),
    wide: true,
    below,
    formula: general ? "variance_general" : "variance"
  };
};

function nine_terms(data) {
  const names = ["q₁k₁", "q₂k₂", "q₃k₃"];
  const term = (a, b) => data.square_terms.find((t) => t.i === a + 1 && t.j === b + 1) || data.square_terms[3 * a + b];
  const body = names.map((name, a) => el("tr", {}, el("th", {scope: "row"}, name), names.map((_, b) => {
                           const t = term(a, b);
                           return el(
                               "td", {class: a === b ? "diagonal" : undefined}, put(digits(3), t, "mean"),
                               el("small", {}, "± ", put(digits(2), t, "standard_error")),
                               el("small", {}, "predicted ", put(exact, t, "expected")));
                         })));
  return el(
      "div", {class: "scroll", tabindex: 0, role: "region", "aria-label": "Means of the nine terms"},
      el("table", {class: "terms"},
         el("caption", {},
            el("span", {}, "Means, with standard errors. Only the diagonal counts where components are independent and of mean 0.")),
         el("thead", {}, el("tr", {}, el("td", {}), names.map((name) => el("th", {scope: "col"}, name)))),
         el("tbody", {}, body)));
}
