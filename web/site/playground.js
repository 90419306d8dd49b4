// The playground: one random head under two rules, side by side, and everything that can be set about it.

/// Scales: what every part that has a menu of rules takes. Others of their kind can be typed.
const usual_scales = {
  "Divisors": ["none", "sqrt_dk", "dk", "dk(8)", "constant(0.0625)", "unit_variance(1,1)"],
  "1/√d_k, times something":
      ["sqrt_dk*ssmax(0.43)", "sqrt_dk*entropy_invariant", "sqrt_dk*llama4", "sqrt_dk*yarn(4)"]
};
/// And what looks at q and k themselves, or bends the scores.
const usual_rules = {
  ...usual_scales,
  "From q and k themselves": ["measured", "qk_norm", "cosine(10)"],
  "1/√d_k, then a cap": ["soft_cap(50)"]
};

/// A menu of rules, and a box for any other.
function rule_choice({state, name, label, rules = usual_scales}) {
  const id = control_id(), typed = "…";
  const select =
      el("select", {id},
         Object.entries(rules).map(
             ([group, ids]) => el(
                 "optgroup", {label: group}, ids.map((id) => el("option", {value: id}, plain_index(rule_name(id)))))),
         el("option", {value: typed}, "another: type it"));
  const box = el("input", {
    type: "text",
    class: "rule-text",
    "aria-label": `${label}, typed`,
    spellcheck: "false",
    autocapitalize: "off",
    hidden: ""
  });
  const follow = () => {
    const value = state.values[name], usual = Object.values(rules).flat().includes(value);
    if (usual && document.activeElement !== box) {
      select.value = value;
      box.hidden = true;
    } else if (!usual) {
      select.value = typed;
      box.hidden = false;
    }
    if (document.activeElement !== box) box.value = value;
  };
  select.addEventListener("change", () => {
    if (select.value !== typed) return state.set({[name]: select.value});
    box.hidden = false;
    box.focus();
    box.select();
  });
  box.addEventListener("input", () => {
    if (box.value.trim()) state.set({[name]: box.value.trim()});
  });
  box.addEventListener("blur", follow);
  state.on((changed) => changed.has(name) && follow());
  follow();
  return el("div", {class: "control choice rule-choice"}, el("label", {for: id
            }, label), select, box);
}
/// For a menu, which knows no subscripts.
const plain_index = (text) => text.replace("d_k", "dₖ").replace("σ_q", "σq").replace("σ_k", "σₖ");

const head_needs = [
  "dk", "keys", "rule", "other", "sigma_q", "sigma_k", "mean", "correlation", "soft_cap", "sink", "dropout", "causal",
  "seed", "row"
];
const head_queries = 64;
const head_arguments = ({other, ...values}, rule) => ({...values, rule, queries: head_queries, row: values.row - 1});
const head_limits = {
  dk: [1, 65536],
  keys: [2, 32768],
  row: [1, head_queries]
};
const most_products = 1024 * 4096;  // d_k × keys: about a second

site_part({
  id: "playground",
  title: "Playground",
  defaults: {
    dk: 64,
    keys: 256,
    rule: "none",
    other: "sqrt_dk",
    sigma_q: 1,
    sigma_k: 1,
    mean: 0,
    correlation: 0,
    soft_cap: null,
    sink: null,
    dropout: 0,
    causal: false,
    seed: 1,
    row: 1
  },
  make(panel_node, state) {
    const steps = [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1, 1.2, 1.4, 1.6, 1.8, 2, 2.5, 3, 4];
    const two = (x) => x.toFixed(2);
    const box = live({
      state,
      needs: head_needs,
      limits: head_limits,
      at: "playground",
      says: 320,
      now: true,
      ask: async (values, call) => {
        want_whole("dk × keys", values.dk * values.keys, 2, most_products);
        const heads = await Promise.all([values.rule, values.other].map(
            (rule, k) => call("playground", head_arguments(values, rule), String(k), {beside: k === 1})));
        return {heads, styles: pair_styles(values.rule, values.other)};
      },
      figures: [scores_of_heads, weights_of_heads, measures_of_heads, row_of_heads, gradient_of_heads],
      says_first: true,
      conclude: (data) => data.heads.flatMap(
          (h, k) => [el("strong", {}, `${rule_name(h.rule)}: `), put(String, h, "conclusion"), k ? "" : " "]),
      more: playground_table,
    });
    const reset = el("button", {type: "button", class: "plain-button"}, "Start over");
    reset.addEventListener("click", () => state.set({...state.defaults}));
    // On a phone what is less often set is folded, so that a slider and what it does are seen together.
    const more = el(
        "details", {class: "more-settings"}, el("summary", {}, "Components, caps, masks, seed"),
        el("div", {class: "setting-group"}, el("h3", {}, "The components of q and k"),
           slider({state, name: "sigma_q", label: "σ_q", hint: "spread of q's", values: steps, exact: true}),
           slider({state, name: "sigma_k", label: "σ_k", hint: "spread of k's", values: steps, exact: true}),
           slider({state, name: "mean", label: "mean", min: -1, max: 1, step: 0.05, exact: true, format: two}), slider({
             state,
             name: "correlation",
             label: "correlation",
             hint: "between components",
             min: 0,
             max: 1,
             step: 0.02,
             exact: true,
             format: two
           })),
        el("div", {class: "setting-group"}, el("h3", {}, "What else is done to the scores"), slider({
             state,
             name: "soft_cap",
             label: "soft-cap",
             hint: "c·tanh(s/c)",
             values: [1, 2, 5, 10, 15, 20, 30, 50, 100],
             off: 20,
             exact: true
           }),
           slider({
             state,
             name: "sink",
             label: "sink",
             hint: "one more key, of this score, value 0",
             min: -5,
             max: 15,
             step: 0.5,
             off: 0,
             exact: true
           }),
           slider({state, name: "dropout", label: "dropout", min: 0, max: 0.9, step: 0.05, exact: true, format: two}),
           toggle({state, name: "causal", label: "causal: no key after the query's own"})),
        el("div", {class: "setting-group"}, slider({
             state,
             name: "row",
             label: "row shown",
             hint: `query 1 to ${head_queries}`,
             min: 1,
             max: head_queries,
             step: 1,
             exact: true,
             format: whole
           }),
           number_box({state, name: "seed", label: "seed", hint: "other random vectors", min: 0, step: 1})));
    more.open = matchMedia("(min-width: 60rem)").matches ||
        head_needs.slice(4).some((name) => String(state.values[name]) !== String(state.defaults[name]));
    const controls =
        el("form", {class: "setting", "aria-label": "What is computed"},
           el("div", {class: "setting-group"}, slider({
                state,
                name: "dk",
                label: "d_k",
                hint: "length of q and k",
                values: doublings(1, 1024),
                exact: true,
                format: whole,
                ticks: [1, 8, 64, 512]
              }),
              slider({
                state,
                name: "keys",
                label: "n",
                hint: "keys",
                values: doublings(2, 4096),
                exact: true,
                format: whole,
                ticks: [4, 32, 256, 2048]
              })),
           el("div", {class: "setting-group two"},
              rule_choice({state, name: "rule", label: "First rule", rules: usual_rules}),
              rule_choice({state, name: "other", label: "Second rule", rules: usual_rules})),
           more, reset);
    controls.addEventListener("submit", (event) => event.preventDefault());
    panel_node.append(
        el("div", {class: "part-head"}, el("h2", {}, "Playground"),
           el("p", {},
              `${head_queries} random queries on n random keys under two rules, side by side. Every move computes ` +
                  `everything anew; the address in your browser holds the settings, so a link shows the same ` +
                  `head.`)),
        el("div", {class: "bench"}, controls, box.node));
  },
});
