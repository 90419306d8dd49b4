// The picture that the story opens with: the same random queries and keys, weighed by softmax without division and with
// it.

const story_limits = {
  dk: [1, 512],
  keys: [2, 1024],
  others_keys: [1, 4096]
};
const opening_sizes = {
  keys: 40,
  queries: 24
};

function opening_picture(state) {
  const rules = ["none", "sqrt_dk"];
  return live({
    state,
    needs: ["dk"],
    limits: story_limits,
    at: "story/opening",
    says: 125,
    name: "weights",
    title: "Attention weights without and with division by √d_k",
    now: true,
    controls: slider({
      state,
      name: "dk",
      label: "d_k",
      hint: "length of every query and key",
      values: story_dk,
      ticks: story_ticks,
      format: whole,
      play: true
    }),
    ask: async ({dk}, call) => {
      const out = {};
      for (const rule of rules) out[rule] = await call("playground", {dk, ...opening_sizes, rule}, rule);
      return out;
    },
    label: (data) => `Two heat maps of the weights that ${opening_sizes.queries} queries give to ${
        opening_sizes.keys} keys at d_k = ${data.none.dk}. Not divided, the largest weight of a row is ${
        number(data.none.measured.p_max)} on average and ${
        number(data.none.measured.exp_entropy)} keys count; divided by √d_k they are ${
        number(data.sqrt_dk.measured.p_max)} and ${number(data.sqrt_dk.measured.exp_entropy)}.`,
    draw(stage, data) {
      const gap = stage.width < 460 ? 14 : 30, top = 26, each = (stage.width - gap) / 2;
      const plot = Math.round(each * 0.62), foot = 66, bar = Math.min(320, stage.width);
      rules.forEach((rule, k) => {
        const dx = k * (each + gap), g = panel(stage, dx, top, rule_name(rule), colour_of(rule));
        draw_heat(g, {
          wide: each,
          plot,
          data: data && data[rule],
          spot: (x, y, title, rows) => stage.spot(dx + x, top + y, `${rule_name(rule)}: ${title}`, rows)
        });
        g.append("rect").attr("class", "heat-frame").attr("width", each).attr("height", plot);
        if (!data) return;
        const m = data[rule].measured;
        const largest = each < 230 ? "largest" : "largest weight of a row:";
        words_at(g, 0, plot + 20, `${largest} ${number(m.p_max, 2)}`, {cls: "strong"});
        words_at(g, 0, plot + 37, `${number(m.exp_entropy, 2)} of ${opening_sizes.keys} keys count`, {cls: "quiet"});
      });
      const g =
          stage.svg.append("g").attr("transform", `translate(${(stage.width - bar) / 2},${top + plot + foot - 8})`);
      draw_heat_bar(g, bar, "weight (every row adds up to 1)");
      return top + plot + foot + 48;
    },
    caption: () =>
        [`Rows are ${opening_sizes.queries} random queries, columns ${opening_sizes.keys} random keys: the same on both ` +
             `sides. Where 12 keys count, a row is as undecided as between 12 equal weights. Computed in this page, ` +
             `by rootdk's engine.`],
    numbers: (data) => ({
      columns: ["rule", "dk", "query", "key", "weight"],
      rows: rules.flatMap(
          (rule) => data[rule].weights.values.map(
              (p, i) =>
                  [rule, data[rule].dk, Math.floor(i / data[rule].weights.keys) + 1, (i % data[rule].weights.keys) + 1,
                   p]))
    }),
    conclude: (data) => {
      const a = data.none, b = data.sqrt_dk;
      const frozen = a.frozen;
      return [
        frozen ? "Undivided scores freeze: " : "Small enough to do without: ", "at d_k = ", put(exact, a, "dk"),
        " the largest weight of a row is ", put(digits(2), a, "measured", "p_max"), " on average without division and ",
        put(digits(2), b, "measured", "p_max"), " with it."
      ];
    },
  });
}
