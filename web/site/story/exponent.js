// Step 6: divide by a power of d_k. The line is level at the power one half and at no other.

const power_dk = [4, 16, 64, 256, 1024], power_sizes = {
  keys: 256,
  queries: 64
};
const rule_of_power = (power, dk) =>
    ({0: "none", 0.5: "sqrt_dk", 1: "dk"}[power] || `constant(${Number((dk ** -power).toPrecision(12))})`);
const power_words = (power) => ({0: "1", 0.5: "√d_k", 1: "d_k"}[power] || `d_k^${power}`);

function power_figure(state) {
  return live({
    state,
    needs: ["power"],
    at: "story/6",
    says: 128,
    name: "power",
    title: "Spread and effective keys against d_k, divided by a power of d_k",
    controls: slider({
      state,
      name: "power",
      label: "power of d_k to divide by",
      hint: "0: not at all, ½: √d_k, 1: d_k",
      min: 0,
      max: 1,
      step: 0.05,
      format: (x) => x.toFixed(2),
      ticks: [0, 0.25, 0.5, 0.75, 1]
    }),
    ask: async ({power}, call) => {
      const points = [];
      for (const dk of power_dk)
        points.push(await call("playground", {dk, ...power_sizes, rule: rule_of_power(power, dk)}, String(dk)));
      return {power, points};
    },
    label: (data) =>
        `Left, the spread of the scores against d_k when q·k is divided by d_k to the power ${data.power}: ${
            data.points.map((p) => `${number(p.measured.sigma)} at ${p.dk}`).join(", ")}. Right, how many of ${
            power_sizes.keys} keys count: ${
            data.points.map((p) => `${number(p.measured.exp_entropy)} at ${p.dk}`).join(", ")}.`,
    draw(stage, data) {
      const beside = stage.width > 620, left = 46, right = 46, gap = 46, top = 40, plot = beside ? 260 : 190;
      const each = (beside ? (stage.width - gap) / 2 : stage.width) - left - right;
      const usual = [0, 0.5, 1], colour_at = (power) => colour_of(rule_of_power(power, 4));
      const colour = data && usual.includes(data.power) ? colour_at(data.power) : "var(--rule-4)";
      const views = [
        {title: "spread σ of the scores", y: d3.scaleLog().domain([0.02, 50]), quantity: "sigma"}, {
          title: `keys that count, of ${power_sizes.keys}`,
          y: d3.scaleLog().domain([1, 400]),
          quantity: "exp_entropy"
        }
      ];
      views.forEach(({title, y, quantity}, k) => {
        const dx = left + (beside ? k * (each + left + right + gap) : 0), dy = top + (beside ? 0 : k * (plot + 84));
        const [first, last] = d3.extent(power_dk), x = d3.scaleLog().domain([first, last]).range([10, each - 10]);
        y.range([plot, 0]);
        const g = scaled(panel(stage, dx, dy), y);
        words_at(g, -left + 6, -20, title, {cls: "panel-name"});
        y_axis(g, y, each, "", 6);
        x_axis(g, x, plot, "d_k", {values: power_dk, width: each});
        if (quantity === "sigma") {
          const critical = data ? data.points[0].critical_sigma : Math.sqrt(2 * Math.log(power_sizes.keys));
          g.append("rect").attr("class", "frozen-zone").attr("width", each).attr("height", y(critical));
          words_at(g, 8, 15, "frozen", {cls: "quiet halo"});
          const spread = (power, dk) => y(dk ** (0.5 - power));
          for (const power of usual)
            g.append("path").attr("class", "reference").style("stroke", colour_at(power)).attr("d", d3.line()([
              first, last
            ].map((dk) => [x(dk), spread(power, dk)])));
          words_at(g, each + 4, -20, "divided by", {cls: "quiet small", anchor: "middle"});
          end_labels(
              g, each + 6,
              usual.map((power) => ({y: spread(power, last), text: power_words(power), colour: colour_at(power)})),
              {bottom: plot});
        } else {
          line_at(g, [0, y(power_sizes.keys)], [each, y(power_sizes.keys)], "reference");
          words_at(g, each + 6, y(power_sizes.keys) + 4, "all", {cls: "quiet"});
        }
        if (!data) return;
        const predicted = data.points.filter((p) => isNumber(p.theory[quantity]));
        g.append("path")
            .attr("class", "predicted")
            .attr("d", d3.line().x((p) => x(p.dk)).y((p) => y(Math.max(y.domain()[0], p.theory[quantity])))(predicted));
        for (const p of data.points) {
          const at = y(p.measured[quantity]);
          mark(
              g.append("circle").attr("cx", x(p.dk)).attr("cy", at).attr("r", 6).style("fill", colour),
              ref(p, "measured", quantity), "cy");
          stage.spot(dx + x(p.dk), dy + at, `d_k = ${whole(p.dk)}`, [
            ["divided by", put(digits(4), p, "divisor")], ["spread σ", put(digits(3), p, "measured", "sigma")],
            ["predicted", put(digits(3), p, "theory", "sigma")],
            ["keys that count", put(digits(3), p, "measured", "exp_entropy")],
            ["largest weight", put(digits(3), p, "measured", "p_max")]
          ]);
        }
      });
      return beside ? top + plot + 42 : top + 2 * (plot + 84) - 42;
    },
    caption: () => `Dots are measured (${power_sizes.queries} queries on ${
        power_sizes.keys} keys), lines predicted. Shaded: beyond σ_c, frozen.`,
    numbers: (data) => ({
      columns:
          ["power", "dk", "divisor", "sigma", "sigma_predicted", "exp_entropy", "exp_entropy_predicted", "p_max"],
      rows: data.points.map(
          (p) =>
              [data.power, p.dk, p.divisor, p.measured.sigma, p.theory.sigma, p.measured.exp_entropy,
               p.theory.exp_entropy, p.measured.p_max])
    }),
    conclude: (data) => {
      const [low, high] = [data.points[0], data.points[data.points.length - 1]];
      const start = data.power === 0.5 ? "Level at last: " : data.power < 0.5 ? "It still climbs: " : "It sinks: ";
      return [
        start, "divided by ", power_text(data.power), " the spread goes from ",
        put(digits(3), low, "measured", "sigma"), " at d_k = ", put(exact, low, "dk"), " to ",
        put(digits(3), high, "measured", "sigma"), " at d_k = ", put(exact, high, "dk"),
        data.power === 0.5 ? "; no other power keeps it at 1." : "; move the power to ½."
      ];
    },
  });
}
const power_text = (power) =>
    ({0: "nothing", 0.5: "√d_k", 1: "d_k"}[power] || el("span", {}, "d_k", el("sup", {}, number(power, 2))));
