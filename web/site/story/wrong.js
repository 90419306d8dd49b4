// Step 7: √d_k is right for components of variance 1, mean 0 and no correlation; what happens elsewhere.

const wrong_sizes = {
  keys: 256,
  queries: 64
};
const wrong_init = {
  widths: [768],
  dk: [64],
  tokens: 64,
  heads: 1,
  batches: 3
};

function wrong_figure(state) {
  return live({
    state,
    needs: ["dk", "spread", "mean", "correlation"],
    limits: story_limits,
    at: "story/7",
    says: 160,
    name: "when-it-is-wrong",
    title: "The spread that is left after dividing by √d_k",
    controls:
        el("div", {class: "control-grid"}, dk_slider(state), slider({
             state,
             name: "spread",
             label: "spread of each component",
             values: [0.25, 0.35, 0.5, 0.7, 0.85, 1, 1.2, 1.4, 1.7, 2, 2.5, 3],
             format: number
           }),
           slider({
             state,
             name: "mean",
             label: "mean of each component",
             min: 0,
             max: 1,
             step: 0.05,
             format: (x) => x.toFixed(2)
           }),
           slider({
             state,
             name: "correlation",
             label: "correlation between components",
             min: 0,
             max: 0.5,
             step: 0.02,
             format: (x) => x.toFixed(2)
           })),
    ask: async ({dk, spread, mean, correlation}, call) => ({
      yours: await call(
          "playground", {dk, ...wrong_sizes, sigma_q: spread, sigma_k: spread, mean, correlation, rule: "sqrt_dk"},
          "yours"),
      init: await call("init", wrong_init, "init", {keep: true})
    }),
    label: (data) => `The spread of the scores after dividing by √d_k: ${
        number(data.yours.measured.sigma)} with the sliders' components at d_k = ${data.yours.dk}; ${
        data.init.rows.map((r) => `${number(r.spread_after_sqrt_dk)} under ${r.init}`).join(", ")}. Right would be 1; ${
        wrong_sizes.keys} keys freeze beyond ${number(data.yours.critical_sigma)}.`,
    draw(stage, data) {
      const rows = wrong_rows(data), names = stage.width > 560, left = names ? 190 : 8, wide = stage.width - left - 18;
      const line = names ? 36 : 50, top = 34, first = line + 14, plot = first + line * (rows.length - 1) + 4;
      const x = d3.scaleLog().domain([0.05, 60]).range([0, wide]).clamp(true), values = [0.1, 0.3, 1, 3, 10, 30];
      const critical = data ? data.yours.critical_sigma : Math.sqrt(2 * Math.log(wrong_sizes.keys));
      const g = scaled(stage.svg.append("g").attr("transform", `translate(${left},${top})`), x);
      g.append("rect")
          .attr("class", "frozen-zone")
          .attr("x", x(critical))
          .attr("width", wide - x(critical))
          .attr("height", plot);
      for (const value of values) line_at(g, [x(value), 0], [x(value), plot], "row-line");
      line_at(g, [x(1), -6], [x(1), plot], "right-line");
      words_at(g, x(1), -12, "right", {cls: "strong", anchor: "middle"});
      words_at(g, x(critical) + 6, -12, "frozen", {cls: "quiet"});
      x_axis(g, x, plot, "spread σ after dividing by √d_k", {values, width: wide});
      line_at(g, [names ? -left : 0, first - 3], [wide, first - 3], "floor");
      rows.forEach(({name, measured, predicted, tip, colour}, k) => {
        const up = k ? first + (k - 1) * line : 6, y = up + (names ? line / 2 : line - 16);
        words_at(
            g, names ? -10 : 0, names ? y + 4 : y - 14, name,
            {cls: k ? "halo" : "halo strong", anchor: names ? "end" : "start"});
        if (!measured) return;
        const at = x(measured.value);
        line_at(g, [0, y], [wide, y], "row-line");
        line_at(g, [x(1), y], [at, y], "reach").style("stroke", colour);
        g.append("path")
            .attr("class", "predicted-mark")
            .attr("d", d3.symbol().type(d3.symbolDiamond).size(150)())
            .attr("transform", `translate(${x(predicted)},${y})`);
        mark(g.append("circle").attr("cx", at).attr("cy", y).attr("r", 5).style("fill", colour), measured, "cx");
        const before = (at < x(1) && at > 62) || at > wide - 62;  // where there is room for the number
        words_at(
            g, at + (before ? -14 : 14), y + 4, number(measured.value),
            {cls: "halo strong", anchor: before ? "end" : "start"});
        stage.spot(left + at, top + y, name, tip);
      });
      return top + plot + 44;
    },
    caption: () =>
        "Dots measured, diamonds predicted. Beneath the sliders' row: projections as usual initialisers make them, " +
        `inputs normalised, width ${wrong_init.widths[0]}, d_k = ${wrong_init.dk[0]}.`,
    numbers: (data) => ({
      columns: ["what", "dk", "spread_after_sqrt_dk", "predicted"],
      rows: [
        ["sliders", data.yours.dk, data.yours.measured.sigma, data.yours.theory.sigma],
        ...data.init.rows.map((r) => [r.init, r.dk, r.spread_after_sqrt_dk, r.predicted_divisor / r.sqrt_dk])
      ]
    }),
    conclude: (data) => {
      const y = data.yours, sigma = y.measured.sigma;
      const start = y.frozen         ? "√d_k does not help here: " :
          Math.abs(sigma - 1) < 0.12 ? "√d_k is right here: " :
          sigma > 1                  ? "√d_k is too small here: " :
                                       "√d_k is too large here: ";
      return [
        start, "the spread left is ", put(digits(3), y, "measured", "sigma"),
        y.frozen ? ", beyond σ_c = " : ", against σ_c = ", put(digits(3), y, "critical_sigma"),
        "; unit variance takes a divisor of ", number(sigma * Math.sqrt(y.dk)), " instead of √d_k = ", root_words(y.dk),
        "."
      ];
    },
  });
}
const init_words = (name) => name.replace("packed", "QKV packed");

/// The sliders' row, then one for each initialiser; without data only their number counts.
function wrong_rows(data) {
  if (!data) return d3.range(6).map((k) => ({name: k ? "" : "your sliders"}));
  const {yours, init} = data;
  return [
    {
      name: "your sliders",
      measured: ref(yours, "measured", "sigma"),
      predicted: yours.theory.sigma,
      colour: colour_of("none"),
      tip: [
        ["measured σ", put(digits(3), yours, "measured", "sigma")],
        ["predicted", put(digits(3), yours, "theory", "sigma")], ["σ_c", put(digits(3), yours, "critical_sigma")],
        ["largest weight", put(digits(3), yours, "measured", "p_max")]
      ]
    },
    ...init.rows.map((r) => ({
                       name: init_words(r.init),
                       measured: ref(r, "spread_after_sqrt_dk"),
                       predicted: r.predicted_divisor / r.sqrt_dk,
                       colour: colour_of("sqrt_dk"),
                       tip: [
                         ["measured σ", put(digits(3), r, "spread_after_sqrt_dk")],
                         ["right divisor, measured", put(digits(3), r, "measured_divisor")],
                         ["predicted", put(digits(3), r, "predicted_divisor")], ["√d_k", put(digits(3), r, "sqrt_dk")]
                       ]
                     }))
  ];
}
