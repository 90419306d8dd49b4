// What a rule is called, and how it looks: a colour, a shape and a dash, the same in every chart.

const rule_names = {
  none: "no scaling",
  sqrt_dk: "1/√d_k",
  dk: "1/d_k",
  "dk(8)": "8/d_k (muP)",
  "constant(0.0625)": "a constant, 1/16",
  "unit_variance(1,1)": "1/(√d_k·σ_q·σ_k)",
  measured: "unit variance, measured",
  qk_norm: "QK-norm",
  "cosine(10)": "cosine × 10",
  "soft_cap(50)": "soft-cap at 50",
  "sqrt_dk*ssmax(0.43)": "1/√d_k × SSMax 0.43 ln n",
  "sqrt_dk*entropy_invariant": "1/√d_k × ln n/ln 512",
  "sqrt_dk*llama4": "1/√d_k × Llama 4",
  "sqrt_dk*yarn(4)": "1/√d_k × YaRN, 4 × context",
  temperature: "adaptive temperature"
};
/// For a person; a rule that has no name here is called by what one types. The engine writes ssmax(0.43, 0) for
/// ssmax(0.43).
function rule_name(rule) {
  const typed = rule.replace(/, /g, ",").replace(/(ssmax\([^,)]*),0\)/, "$1)");
  return Object.hasOwn(rule_names, typed) ? rule_names[typed] : rule;
}

const known_rules = {
  none: {label: rule_name("none"), colour: "var(--rule-none)", symbol: d3.symbolTriangle, dash: "7 4"},
  sqrt_dk: {label: rule_name("sqrt_dk"), colour: "var(--rule-sqrt_dk)", symbol: d3.symbolCircle, dash: null},
  dk: {label: rule_name("dk"), colour: "var(--rule-dk)", symbol: d3.symbolSquare, dash: "2 3"},
};
const more_symbols = [d3.symbolDiamond, d3.symbolCross, d3.symbolStar, d3.symbolWye];
const more_dashes = ["9 3 2 3", "5 2", "1 2", "12 4"];
const met = new Map();

/// Any name does: those beyond the three take what is left, in order of appearance.
function style_of(name) {
  if (Object.hasOwn(known_rules, name)) return known_rules[name];
  if (!met.has(name)) {
    const i = met.size % 4;
    const look = {colour: `var(--rule-${3 + i})`, symbol: more_symbols[i], dash: more_dashes[i]};
    met.set(name, {label: rule_name(name), ...look});
  }
  return met.get(name);
}
const unique = (values) => [...new Set(values)];
