// Training under each rule: a curve for each seed, and beneath, on the same steps, what attention did.

/// coming: of a training that goes on. Then there is everything to choose, and the axis of steps is as long as it will be.
function training_curves(data, {coming = false} = {}) {
  const sizes = unique(data.rules.map((r) => r.dk));
  const held_out = (field) => (run) => ({node: run.evaluations, field});
  const trained = (field) => (run) => ({node: run.steps, field});
  const there = (measure) => coming || data.rules.some((r) => r.runs.some((run) => {
    const {node, field} = measure.of(run);
    return node && Array.isArray(node[field]) && node[field].length;
  }));
  const above = [
    {id: "accuracy", label: "accuracy, held out", of: held_out("accuracy")},
    {id: "loss", label: "loss, held out", of: held_out("loss")}, {id: "train_loss", label: "loss, training", of: trained("loss")},
    {id: "train_accuracy", label: "accuracy, training", of: trained("accuracy")},
    {id: "norm", label: "gradient norm", of: trained("gradient_norm"), log: true}
  ].filter(there);
  if (data.measure === "loss") above.sort((a, b) => Number(b.id.endsWith("loss")) - Number(a.id.endsWith("loss")));
  const beneath = [
    {id: "entropy", label: "entropy (nats)", of: trained("entropy")},
    {id: "sigma", label: "spread σ of scores", of: trained("sigma"), log: true},
    {id: "p_max", label: "largest weight", of: trained("p_max")},
    {id: "score_max", label: "largest score", of: trained("score_max")}
  ].filter(there);

  if (!above.length && !beneath.length) return null;  // stopped before a counted run had a step
  const many = (data.learning_rates || []).length !== 1;
  return chart({
    label: () => `Training curves under each rule, with the entropy of attention beneath.${ends_in_words(data)}`,
    series: rule_series(data.rules.map((r) => r.rule)),
    choices: {
      ...(sizes.length > 1 ? {"d_k": sizes.map((id) => ({id: String(id), label: String(id)}))} : {}),
      ...(above.length ? {Above: above} : {}),
      ...(beneath.length ? {Beneath: beneath} : {})
    },
    caption:
        ["The task: ", ref(data, "task"), many ? ". Each rule at its own best learning rate; a" : ". One learning rate for all; a", " line for each seed. Beneath: means over heads."],
    draw(stage) {
      const left = 50, right = 14, wide = stage.width - left - right, heights = stage.narrow ? [190, 130] : [230, 150];
      const rules = data.rules.filter(
          (r) => stage.visible.some((s) => s.id === r.rule) && (sizes.length < 2 || String(r.dk) === stage.chosen["d_k"]));
      const runs = rules.flatMap((rule) => rule.runs.map((run) => ({rule, run})));
      const x =
          d3.scaleLinear()
              .domain([
                0,
                coming ? data.steps : d3.max(runs, ({run}) => d3.max([...((run.steps || {}).step || []), ...((run.evaluations || {}).step || [])])) || 1
              ])
              .range([0, wide]);
      let top = 28;
      [above.find((m) => m.id === stage.chosen.Above), beneath.find((m) => m.id === stage.chosen.Beneath)]
          .filter(Boolean)
          .forEach((measure, k) => {
            const plot = heights[k];
            const values = runs.flatMap(({run}) => {
              const {node, field} = measure.of(run);
              return ((node || {})[field] || []).filter((v) => isNumber(v) && (!measure.log || v > 0));
            });
            if (!values.length && !coming) return;
            const [a, b] = values.length ? d3.extent(values) : [.1, 1];
            const y = measure.log ?
                d3.scaleLog().domain([a / 1.2, b * 1.2]) :
                d3.scaleLinear().domain([Math.min(0, a), measure.id.endsWith("accuracy") ? 1 : b * 1.05 || 1]);
            y.range([plot, 0]);
            const g = scaled(stage.svg.append("g").attr("transform", `translate(${left},${top})`), y);
            y_axis(g, y, wide, measure.label);
            x_axis(g, x, plot, "step", {values: x.ticks(stage.narrow ? 4 : 8), width: wide});
            for (const {rule, run} of runs) {
              const {node, field} = measure.of(run), line = node && node[field], style = style_of(rule.rule);
              if (!line || !line.length) continue;
              const ok = (v) => isNumber(v) && (!measure.log || v > 0);
              g.append("path")
                  .classed("mark", true)
                  .attr("data-path", pointers.get(line))
                  .attr("data-count", line.length)
                  .attr("fill", "none")
                  .attr("stroke", style.colour)
                  .attr("stroke-width", 1.6)
                  .attr("stroke-dasharray", style.dash)
                  .attr("stroke-opacity", 0.85)
                  .attr("d", d3.line().defined(ok).x((_, j) => x(node.step[j])).y(y)(line));
              const stride = Math.max(1, Math.ceil(line.length / 24));
              line.forEach((v, j) => {
                if (!ok(v) || (j % stride && j + 1 < line.length)) return;
                if (j % (stride * 3) === 0) mark(symbol(g, style, x(node.step[j]), y(v), 34), ref(node, field, j), "ty");
                stage.spot(
                    left + x(node.step[j]), top + y(v), `${rule.rule}, seed ${run.seed}, step ${node.step[j]}`,
                    [[measure.label, put(digits(4), node, field, j)]]);
              });
            }
            top += plot + (k === 0 ? 70 : 42);
          });
      return top;
    },
  });
}

/// How far every run has come, for those who cannot see its curve.
function ends_in_words(data) {
  const last = (list) => list && list.length ? list[list.length - 1] : null;
  const parts = data.rules.flatMap((r) => r.runs.map((run) => [r.rule, last((run.steps || {}).step), last((run.steps || {}).loss)]))
                    .filter(([, step, loss]) => isNumber(step) && isNumber(loss))
                    .map(([rule, step, loss]) => `${rule} has a loss of ${number(loss)} at step ${step}`);
  return parts.length ? ` ${parts.join("; ")}.` : "";
}

experiments.train = (data) => {
  const figure = training_curves(data);
  if (!figure) return {below: []};
  const summary = table(
      "What the seeds came to",
      [
        {title: "rule", left: true}, "d_k", "seeds", "diverged", "learning rate",
        {title: `${data.measure || "result"}, median`, kind: "measured"}, "worst seed", "best seed", "steps to the goal",
        "σ at first", "σ at last"
      ],
      data.rules.map(
          (r) =>
              [ref(r, "rule"), put(exact, r, "dk"), put(exact, r, "seeds"), put(exact, r, "diverged"),
               put(exact, r, "learning_rate"), ref(r, "median"), ref(r, "worst"), ref(r, "best"), put(exact, r, "steps_to_goal"),
               ref(r, "first_sigma"), ref(r, "last_sigma")]));
  const sentences = data.rules.filter((r) => r.conclusion);
  const each = el("ul", {class: "note"}, sentences.map((r) => el("li", {}, ref(r, "conclusion"))));
  const ends = all_numbers(
      "All held-out results",
      ...data.rules.map(
          (r) => table(
              `Under ${r.rule}, d_k = ${r.dk}`, ["seed", "step", "loss", "accuracy"],
              r.runs.filter((run) => run.evaluations)
                  .flatMap(
                      (run) => run.evaluations.step.map(
                          (_, j) =>
                              [put(exact, run, "seed"), put(exact, run.evaluations, "step", j),
                               put(digits(4), run.evaluations, "loss", j), put(digits(4), run.evaluations, "accuracy", j)])))));
  const swept = data.rules.filter((r) => r.dk === data.rules[0].dk && (r.tuning || []).length > 1);
  const sweep = swept.length ? [
    el("h3", {}, "Every learning rate that was tried"), el("p", {class: "claim"}, sweep_words(swept)),
    sweep_figure(swept, unique(swept.flatMap((r) => r.tuning.map((t) => t.learning_rate))).sort(d3.ascending), data.measure)
  ] : [];
  return {figure, below: [summary, sentences.length ? each : null, ...sweep, ends]};
};
