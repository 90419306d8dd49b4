// Step 8: what else sets or bounds the scores, on one and the same random head.

/// A file with [1, 1, length, dim] normal numbers, always the same for the same seed and size.
function random_head(name, length, dim, seed, spread) {
  let a = seed >>> 0;
  const uniform = () => {  // mulberry32
    a = (a + 0x6d2b79f5) >>> 0;
    let t = Math.imul(a ^ (a >>> 15), a | 1);
    t = (t + Math.imul(t ^ (t >>> 7), t | 61)) ^ t;
    return ((t ^ (t >>> 14)) >>> 0) / 4294967296;
  };
  const normal = d3.randomNormal.source(uniform)(0, spread);
  const data = Float32Array.from({length: length * dim}, normal);
  return new File([npy_of({data, shape: [1, 1, length, dim]})], `${name}.npy`);
}
/// A button for each, so that the command line beneath a figure finds what it names. files() → {q: File, …}.
const save_files = (names, files) => el("div", {class: "saving"}, names.map((name) => {
  const button = el("button", {type: "button"}, `Save ${name}.npy`);
  button.addEventListener("click", () => files() && download(`${name}.npy`, "application/octet-stream", files()[name]));
  return button;
}));

const other_measures = [
  {
    id: "effective_keys",
    label: "share of the keys that count",
    of: (r, data) => r.effective_keys / data.len_kv,
    most: 1
  },
  {id: "sigma", label: "spread σ of the scores", of: (r) => r.sigma},
  {id: "p_max", label: "largest weight of a row", of: (r) => r.p_max, most: 1},
  {id: "trace_j", label: "tr J: gradient let through", of: (r) => r.trace_j, most: 1}
];
function others_figure(state) {
  let head = null;
  const box = live({
    state,
    needs: ["dk", "others_keys", "others_spread"],
    limits: story_limits,
    at: "story/8",
    says: 175,
    name: "rules",
    title: "Every rule on the same head",
    controls:
        el("div", {class: "control-grid"}, dk_slider(state), slider({
             state,
             name: "others_keys",
             label: "n",
             hint: "number of keys",
             values: [16, 32, 64, 128, 256, 512, 1024, 2048, 4096],
             format: whole
           }),
           slider({
             state,
             name: "others_spread",
             label: "spread of components",
             hint: "grows in training",
             values: [0.5, 0.7, 1, 1.4, 2, 2.8, 4],
             format: number
           })),
    ask: ({dk, others_keys, others_spread}, call) => {
      head = {q: random_head("q", 64, dk, 1, others_spread), k: random_head("k", others_keys, dk, 2, others_spread)};
      return call("whatif", head);
    },
    choices: {Show: other_measures},
    address: {menus: {Show: "others_show"}},
    label: (data) => `What every rule makes of the same head, ${data.len_kv} keys, d_k = ${data.dk}: ${
        data.rows
            .map(
                (r) => `${rule_name(r.rule)} spread ${number(r.sigma)}, ${
                    number(r.effective_keys)} keys count`)
            .join("; ")}.`,
    draw(stage, data) {
      const rows = data ? data.rows : d3.range(13).map(() => null),
            what = other_measures.find((m) => m.id === stage.chosen.Show);
      const values = data ? rows.map((r) => what.of(r, data)).filter(isNumber) : [];
      return row_bars(stage, {
        rows,
        name: (r) => (r ? rule_name(r.rule) : ""),
        value: (r) => r && what.of(r, data),
        reference: (r) => ref(r, what.id),
        axis: what.label,
        colour: (r) => colour_of(r.rule in known_rules ? r.rule : "others"),
        text: what.most ? (v) => percent(v) : number,
        tick: what.most ? percent_tick : undefined,
        most: what.most || 1.05 * (d3.max(values) || 1),
        tip: (r) => [
            ["spread σ", put(number, r, "sigma")], ["largest score", put(number, r, "largest_score")],
            ["keys that count", put(number, r, "effective_keys")], ["largest weight", put(number, r, "p_max")],
            ["tr J", put(number, r, "trace_j")], ["rows shut", put(percent, r, "share_trace_j_under_1pct")]]
      });
    },
    caption: () => `64 random queries on ${
        whole(state.values.others_keys)} random keys, made in this page; every rule sees the same.`,
    numbers: (data) => ({
      columns: [
        "rule", "keys", "dk", "sigma", "largest_score", "entropy", "effective_keys", "p_max", "trace_j",
        "share_trace_j_under_1pct"
      ],
      rows: data.rows.map(
          (r) =>
              [r.rule, data.len_kv, data.dk, r.sigma, r.largest_score, r.entropy, r.effective_keys, r.p_max,
               r.trace_j, r["share_trace_j_under_1pct"]])
    }),
    conclude: (data) => {
      const row = (rule) => data.rows.find((r) => r.rule === rule);
      const root = row("sqrt_dk"), norm = row("qk_norm"), long = row("sqrt_dk*ssmax(0.43)");
      if (Math.abs(Math.log(root.sigma)) > 0.3)
        return [
          "A norm does not care how large q and k have become: QK-norm leaves a spread of ",
          put(digits(3), norm, "sigma"), ", 1/√d_k one of ", put(digits(3), root, "sigma"), "."
        ];
      return [
        "At unit variance most of them agree, but not those that take the length into account: on ", put(exact, data, "len_kv"),
        " keys 1/√d_k spreads its weight over ", put(digits(3), root, "effective_keys"),
        " keys, and SSMax, which grows with ln n, over ", put(digits(3), long, "effective_keys"), "."
      ];
    },
  });
  box.node.querySelector(".how").append(save_files(["q", "k"], () => head));
  return box;
}

/// The laboratory's list of rules, once the engine has said it.
function rules_table() {
  const place = el("div");
  site_engine().call("rules", {}).then((found) => {
    note(found, "/rules");
    place.append(rules_list("All rules, and who proposed them", found.rules));
  }, () => {});  // the figures say why there is no engine
  return place;
}
