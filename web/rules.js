// How a rule looks: a colour, a shape and a dash, the same in every chart.

const known_rules = {
  none: {label: "none: c = 1", colour: "var(--rule-none)", symbol: d3.symbolTriangle, dash: "7 4"},
  sqrt_dk: {label: "sqrt_dk: c = 1/√d_k", colour: "var(--rule-sqrt_dk)", symbol: d3.symbolCircle, dash: null},
  dk: {label: "dk: c = 1/d_k", colour: "var(--rule-dk)", symbol: d3.symbolSquare, dash: "2 3"},
};
const more_symbols = [d3.symbolDiamond, d3.symbolCross, d3.symbolStar, d3.symbolWye];
const more_dashes = ["9 3 2 3", "5 2", "1 2", "12 4"];
const met = new Map();

/// Any name does: those beyond the three take what is left, in order of appearance.
function style_of(name) {
  if (Object.hasOwn(known_rules, name)) return known_rules[name];
  if (!met.has(name)) {
    const i = met.size % 4;
    met.set(name, {label: name, colour: `var(--rule-${3 + i})`, symbol: more_symbols[i], dash: more_dashes[i]});
  }
  return met.get(name);
}
const unique = (values) => [...new Set(values)];
