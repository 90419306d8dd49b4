// What every learning rate came to under every rule: a rule that takes larger rates may need them.

const kLearned = 0.9;  // of held-out answers right: from here on a run has learned

/// rules: [{rule, dk, tuning: [{learning_rate, outcome, loss, accuracy}]}], also while they are being filled; rates: all there will be.
function sweep_figure(rules, rates, measure = "accuracy") {
  const right = measure === "accuracy";
  const known = (t) => isNumber(t[measure]);
  return chart({
    label: () => `Held-out ${measure} in the end at every learning rate, a line for each rule. ${sweep_words(rules)}`,
    series: rule_series(rules.map((r) => r.rule)),
    caption: () => [right ? "Held-out answers right in the end. " : "Held-out loss in the end. ", "A cross marks a run that diverged. ",
                    right ? ["The level line is ", percent(kLearned), ": a run above it has learned the task."] : ""],
    draw(stage) {
      const left = 52, top = 30, side = 16, plot = stage.narrow ? 200 : 240, wide = stage.width - left - side;
      const x = d3.scaleLog().domain(d3.extent(rates).map((r, i) => (i ? r * 1.25 : r / 1.25))).range([0, wide]);
      const values = rules.flatMap((r) => r.tuning.filter(known).map((t) => t[measure]));
      const y = d3.scaleLinear().domain(right ? [0, 1] : [0, (d3.max(values) || 1) * 1.05]).range([plot, 0]);
      const g = scaled(stage.svg.append("g").attr("transform", `translate(${left},${top})`), y);
      y_axis(g, y, wide, right ? "held-out answers right" : "held-out loss (nats)", 5);
      x_axis(g, x, plot, "learning rate", {values: rates, width: wide, format: exact});
      if (right) g.append("line").attr("class", "reference").attr("x2", wide).attr("y1", y(kLearned)).attr("y2", y(kLearned));
      for (const rule of rules.filter((r) => stage.visible.some((s) => s.id === r.rule))) {
        const style = style_of(rule.rule), done = rule.tuning.slice().sort((a, b) => a.learning_rate - b.learning_rate);
        const finite = done.filter((t) => known(t) && t.outcome !== "diverged");
        g.append("path").attr("fill", "none").attr("stroke", style.colour).attr("stroke-width", 2).attr("stroke-dasharray", style.dash)
            .attr("d", d3.line().x((t) => x(t.learning_rate)).y((t) => y(t[measure]))(finite));
        for (const t of done) {
          const px = x(t.learning_rate);
          if (t.outcome === "diverged" || !known(t)) {
            g.append("path").attr("class", "crossed").attr("stroke", style.colour).attr("transform", `translate(${px},${plot - 8})`).attr("d", "M-5,-5L5,5M-5,5L5,-5");
            stage.spot(left + px, top + plot - 8, `${rule.rule} at ${exact(t.learning_rate)}`, [["outcome", t.outcome]]);
            continue;
          }
          mark(symbol(g, style, px, y(t[measure]), 90), ref(t, measure), "ty");
          stage.spot(left + px, top + y(t[measure]), `${rule.rule} at ${exact(t.learning_rate)}`,
                     [["answers right", put(percent, t, "accuracy")], ["loss (nats)", put(digits(3), t, "loss")]]);
        }
      }
      return top + plot + 42;
    },
  });
}

/// What the two rules that learn have over each other: "1/d_k survives a higher rate, 1/√d_k learns at a lower".
function sweep_claim(rules) {
  const range = (name) => {
    const rule = rules.find((r) => r.rule === name), learned = rule ? rule.tuning.filter((t) => t.accuracy >= kLearned).map((t) => t.learning_rate) : [];
    return learned.length ? d3.extent(learned) : null;
  };
  const root = range("sqrt_dk"), whole_dk = range("dk");
  if (!root || !whole_dk) return "";
  const parts = [[whole_dk[1], root[1], "1/d_k", "1/√d_k", "survives a higher rate"], [1 / root[0], 1 / whole_dk[0], "1/√d_k", "1/d_k", "learns at a lower rate"]];
  return parts.filter(([a, b]) => a !== b).map(([a, b, first, second, words]) => `${a > b ? first : second} ${words}`).join(", ");
}

/// "1/√d_k learns at rates from 0.001 to 0.01, 1/d_k from 0.003 to 0.03, no scaling at none of 5.", and before it what that means.
function sweep_words(rules) {
  const said = {none: "no scaling", sqrt_dk: "1/√d_k", dk: "1/d_k"};
  const parts = rules.filter((r) => r.tuning.length).map((r, i) => {
    const learned = r.tuning.filter((t) => t.accuracy >= kLearned).map((t) => t.learning_rate).sort(d3.ascending);
    const verb = i ? "" : " learns", name = said[r.rule] || r.rule;
    if (!learned.length) return `${name}${verb} at none of ${r.tuning.length} rates`;
    return learned.length === 1 ? `${name}${verb} at a rate of ${exact(learned[0])}` :
                                  `${name}${verb} at rates from ${exact(learned[0])} to ${exact(learned[learned.length - 1])}`;
  });
  if (!parts.length) return "";
  const claim = sweep_claim(rules);
  return `${claim ? `${claim}: ` : ""}${parts.join(", ")}.`.replace(/^./, (c) => c.toUpperCase());
}
