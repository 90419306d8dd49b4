// Step 3, the lecture's moment: one slider, and scores, weights and gradient follow at once.

const softmax_sizes = {
  keys: 64,
  queries: 128
};

function softmax_figure(state) {
  return live({
    state,
    needs: ["dk", "divide"],
    limits: story_limits,
    at: "story/3",
    says: 195,
    name: "softmax",
    title: "Scores, weights and gradients",
    controls: el("div", {class: "control-row"}, dk_slider(state, {play: true}), divide_by(state)),
    ask: ({dk, divide}, call) => call("playground", {dk, ...softmax_sizes, rule: divide}),
    label: (data) => `Three panels at d_k = ${data.dk}, ${rule_name(data.rule)}. Scores have a spread of ${
        number(data.measured.sigma)}; ${data.keys} keys freeze beyond ${
        number(data.critical_sigma)}. In one row the largest weight is ${number(d3.max(data.row.p))}. ${
        dead_keys(data.row)} a gradient below a thousandth.`,
    draw(stage, data) {
      const columns = stage.width > 640 ? 3 : 1, gap = 46, left = 38, reach = 60;
      const each = columns === 3 ? (stage.width - left - 2 * gap - 4) / 3 : stage.width - left - 4;
      const plot = columns === 3 ? 210 : 130, line = plot + 88, top = 40, rule = state.values.divide;
      const at = (k) => (columns === 3 ? [left + k * (each + gap), top] : [left, top + k * line]);
      const titles = ["the scores", "softmax: their weights", "and back: the gradient"];
      titles.forEach((title, k) => {
        const [x, y] = at(k);
        const g = panel(stage, x, y, "", null);
        words_at(g, k ? -30 : 0, -20, title, {cls: "panel-name"});
        const spot = (sx, sy, words, rows) => stage.spot(x + sx, y + sy, words, rows);
        if (k === 0) {
          const inner = g.append("g").attr("transform", `translate(0,${spread_strip})`);
          draw_histogram(inner, {
            wide: each,
            plot: plot - spread_strip,
            rule,
            data,
            reach,
            narrow: each < 240,
            spot: (sx, sy, words, rows) => spot(sx, sy + spread_strip, words, rows)
          });
          draw_spread(g, {wide: each, plot: plot - spread_strip, data, reach, rule});
        } else {
          (k === 1 ? draw_weights : draw_key_gradients)(g, {wide: each, plot, rule, data, spot});
          words_at(g, each, plot + 18, `${softmax_sizes.keys} keys, heaviest first`, {cls: "axis-name", anchor: "end"});
        }
      });
      return columns === 3 ? top + plot + 42 : top + 3 * line - 40;
    },
    caption: () =>
        `The scores: ${softmax_sizes.queries} × ${
            softmax_sizes.keys} of them, the predicted normal curve over them, their spread σ and the critical ` +
        "spread (dotted). Their weights: of one row; dotted, all equal. The gradient: what reaches each key's score when " +
        "every weight receives a random one of size 1; grey where it is below 10⁻⁹.",
    numbers: (data) => ({
      columns: ["key", "score", "weight", "gradient_at_score"],
      rows: data.row.p.map((p, j) => [j + 1, data.row.scores[j], p, data.row.score_gradient[j]])
    }),
    conclude: (data) => {
      const m = data.measured;
      const start = data.frozen ? "Frozen: " : m.exp_entropy > 0.95 * data.keys ? "Nearly all the same: " : "Soft: ";
      return [
        start, "σ = ", put(digits(3), data, "measured", "sigma"),
        data.frozen ? " is beyond σ_c = " : " is below σ_c = ", put(digits(3), data, "critical_sigma"),
        ", the largest of ", put(exact, data, "keys"), " weights is ", put(digits(2), data, "measured", "p_max"),
        " on average, ", put(digits(2), data, "measured", "exp_entropy"), " keys count, and in the row shown ",
        dead_keys(data.row), " less than a thousandth of the gradient."
      ];
    },
  });
}
/// "1 key receives", "12 keys receive" less than a thousandth.
function dead_keys(row) {
  const dead = row.score_gradient.filter((x) => x < 1e-3).length;
  return `${counted(dead, "key")} ${dead === 1 ? "receives" : "receive"}`;
}
