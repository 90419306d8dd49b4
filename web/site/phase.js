// The phase map: soft or frozen over d_k × keys under one rule, computed cell by cell in workers of its own, coarse
// first. A click on a cell sets the playground to it, a second one opens it.

const phase_dk = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024];
const phase_keys = [2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096];
const phase_sizes = {
  queries: 32,
  batches: 3
};
const phase_measures = [
  {id: "p_max", label: "largest weight of a row", of: (p) => p.p_max.value, unit: "largest weight, mean over rows"},
  {
    id: "trace_j",
    label: "tr J: gradient let through",
    of: (p) => p.trace_j.value,
    unit: "tr J, mean over rows"
  },
  {
    id: "entropy",
    label: "entropy over ln n",
    of: (p) => p.entropy.value / Math.log(p.keys),
    unit: "entropy over ln n, mean over rows"
  },
];
const phase_place = (dk, keys) => `${dk},${keys}`;
/// For a cell of a map: 0.87, 1, 0.
const brief_share = (x) => (x < 0.005 ? "0" : x > 0.995 ? "1" : x.toFixed(2));

/// Every other cell of every other row first, then between them; cheap ones before dear ones.
function phase_order() {
  const cells = [];
  for (const [i, dk] of phase_dk.entries())
    for (const [j, keys] of phase_keys.entries()) {
      const round = i % 2 === 0 && j % 2 === 1 ? 0 : i % 2 === 0 || j % 2 === 1 ? 1 : 2;
      cells.push({dk, keys, round, cost: dk * keys});
    }
  return cells.sort((a, b) => a.round - b.round || a.cost - b.cost);
}

/// Where soft meets frozen: the sides between neighbours of which one is.
function phase_border(points, x, y) {
  const frozen = (i, j) => (points.get(phase_place(phase_dk[i], phase_keys[j])) || {}).frozen;
  const sides = [];
  phase_dk.forEach((dk, i) => phase_keys.forEach((keys, j) => {
    const here = frozen(i, j), above = frozen(i + 1, j), beside = frozen(i, j + 1);
    if (here === undefined) return;
    if (above !== undefined && above !== here) sides.push(`M${x(keys)},${y(dk)}h${x.bandwidth()}`);
    if (beside !== undefined && beside !== here) sides.push(`M${x(keys) + x.bandwidth()},${y(dk)}v${y.bandwidth()}`);
  }));
  return sides.join("");
}

/// What the line is, where there is one: under 1/√d_k nothing is frozen.
function phase_line_words(points) {
  const frozen = d3.sum(points.values(), (p) => Number(p.frozen));
  if (frozen && frozen < points.size)
    return "The line separates soft from frozen: there σ passes σ_c = √(2 ln n). ";
  return points.size ? `Every cell is ${frozen ? "frozen: σ is beyond" : "soft: σ is below"} σ_c = √(2 ln n). ` : "";
}

/// points: place → point; what there is so far. chosen: the cell that the playground is set to.
function draw_phase(stage, {points, what, chosen, pick}) {
  const left = 52, top = 12, wide = stage.width - left - 6;
  const cell = Math.max(26, Math.min(46, 0.62 * wide / phase_keys.length)), plot = cell * phase_dk.length;
  const x = d3.scaleBand().domain(phase_keys).range([0, wide]), y = d3.scaleBand().domain(phase_dk).range([plot, 0]);
  const scale = from_to(0, 1, {ticks: [0, 0.25, 0.5, 0.75, 1]});
  const g = stage.svg.append("g").attr("transform", `translate(${left},${top})`);
  g.append("rect").attr("class", "heat-paper").attr("width", wide).attr("height", plot);
  for (const [i, dk] of [...phase_dk.entries()].reverse())  // as one reads: from the top
    for (const [j, keys] of phase_keys.entries()) {
      const p = points.get(phase_place(dk, keys));
      const coarse = points.get(phase_place(phase_dk[i - (i % 2)], phase_keys[j | 1]));  // stands in until p comes
      const fill = p || coarse ? scale.colour(what.of(p || coarse)) : "transparent";
      const box = g.append("rect")
                      .attr("class", "cell")
                      .attr("data-dk", dk)
                      .attr("data-keys", keys)
                      .attr("x", x(keys))
                      .attr("y", y(dk))
                      .attr("width", x.bandwidth())
                      .attr("height", cell)
                      .style("fill", fill)
                      .style("fill-opacity", p ? 1 : 0.4);
      if (!p) continue;
      mark(box, ref(p, what.id, "value"));
      const cx = x(keys) + x.bandwidth() / 2, cy = y(dk) + cell / 2;
      if (x.bandwidth() >= 44)
        words_at(g, cx, cy + 4, brief_share(what.of(p)), {cls: "in-cell", anchor: "middle", fill: readable_on(fill)});
      stage.spot(
          left + cx, top + cy, `d_k = ${whole(dk)}, ${whole(keys)} keys: ${p.frozen ? "frozen" : "soft"}`,
          [
            [what.label, number(what.of(p))], ["spread σ", put(digits(3), p, "sigma")],
            ["σ_c", put(digits(3), p, "critical_sigma")]
          ],
          {line: phase_dk.length - 1 - i, half: [x.bandwidth() / 2, cell / 2], pick: () => pick(dk, keys)});
    }
  for (const name of ["freezes-edge", "freezes"])
    g.append("path").attr("class", name).attr("stroke-linecap", "square").attr("d", phase_border(points, x, y));
  for (const name of ["picked-edge", "picked-ring"])
    g.append("rect")
        .attr("class", name)
        .attr("x", x(chosen.keys) + 1)
        .attr("y", y(chosen.dk) + 1)
        .attr("width", x.bandwidth() - 2)
        .attr("height", cell - 2)
        .attr("rx", 2);
  x_axis(
      g, x, plot, "n, number of keys",
      {width: wide, format: whole, values: phase_keys.filter((_, j) => x.bandwidth() > 40 || j % 2)});
  g.append("g")
      .attr("class", "axis")
      .call(d3.axisLeft(y).tickSize(0).tickPadding(7).tickFormat(whole))
      .select(".domain")
      .remove();
  words_at(g, -8, plot + 18, "d_k", {cls: "axis-name", anchor: "end"});
  return top + plot + 50 +
      colour_bar(stage.svg, scale, {x: left, y: top + plot + 44, width: Math.min(320, wide), name: what.unit});
}

site_part({
  id: "phase",
  title: "Phase map",
  defaults: {rule: "none", show: "p_max", dk: 64, keys: 1024},
  valid: {
    show: one_of(phase_measures.map((m) => m.id)),
    dk: one_of(phase_dk),
    keys: one_of(phase_keys)
  },
  make(panel_node, state) {
    const engines = [];
    let points = new Map(), run = 0, alive = false;
    const here = () => points.get(phase_place(state.values.dk, state.values.keys));
    const what = () => phase_measures.find((m) => m.id === state.values.show);
    const other = () => (state.values.rule === "sqrt_dk" ? "none" : "sqrt_dk");
    const setting = () => ({dk: state.values.dk, keys: state.values.keys, rule: state.values.rule, other: other()});
    const open_playground = () => site_open("playground", setting());

    function pick(dk, keys) {
      if (dk === state.values.dk && keys === state.values.keys) return open_playground();
      state.set({dk, keys});
      site_parts.find((part) => part.id === "playground").state.take(setting(), false);
      if (here()) say_soon(`${sentence.textContent} The playground is set to it; once more opens it.`);
    }
    const figure = chart({
      label: () => `Map of the ${what().label} over d_k and the number of keys, rule ${state.values.rule}; ${
          points.size} of ${phase_dk.length * phase_keys.length} cells computed.${
          here() ? ` At d_k = ${here().dk} and ${here().keys} keys it is ${number(what().of(here()))}.` : ""}`,
      caption: () => `Each cell is measured on random queries and keys. ${phase_line_words(points)}` +
          "Click a cell, or press Enter on it, and the playground is set to it.",
      draw: (stage) => draw_phase(stage, {points, what: what(), chosen: state.values, pick}),
    });
    with_saving(figure, {
      name: "phase",
      title: "Phase map",
      numbers: () => ({
        columns: [
          "rule", "dk", "keys", "sigma", "critical_sigma", "frozen", "p_max", "p_max_theory", "entropy",
          "entropy_theory", "trace_j", "trace_j_theory"
        ],
        rows: [...points.values()]
                  .sort((a, b) => a.dk - b.dk || a.keys - b.keys)
                  .map(
                      (p) =>
                          [p.rule, p.dk, p.keys, p.sigma, p.critical_sigma, p.frozen,
                           ...["p_max", "entropy", "trace_j"].flatMap((m) => [p[m].value, p[m].theory])])
      })
    });

    const readout = el("div", {class: "readout"});
    const sentence = el("p", {class: "says"}, " "), refusal = el("p", {class: "refused", role: "alert"});
    const progress =
        el("progress", {max: phase_dk.length * phase_keys.length, value: 0, "aria-label": "Cells computed"});
    const go = el("button", {type: "button", class: "plain-button strong-button"}, "Open in the playground\u00a0→");
    go.addEventListener("click", open_playground);

    function tell() {
      const p = here();
      go.disabled = !p;
      if (!p) {
        readout.replaceChildren(el("p", {class: "note"}, "This cell has not been computed yet."));
        sentence.textContent = " ";
        return;
      }
      const line = (name, m) =>
          [name, el("span", {}, put(digits(3), p, m, "value"), el("small", {}, interval(p[m], "ci95", digits(3)))),
           put(digits(3), p, m, "theory")];
      readout.replaceChildren(
          el("h3", {}, `d_k = ${whole(p.dk)}, ${whole(p.keys)} keys`),
          el("p", {class: "note"}, "σ = ", put(digits(3), p, "sigma"), ", σ_c = ", put(digits(3), p, "critical_sigma")),
          table(
              "Means over rows, with 95 % intervals",
              [
                {title: "mean", left: true}, {title: "measured", kind: "measured"},
                {title: "predicted", kind: "predicted"}
              ],
              [line("largest weight", "p_max"), line("entropy", "entropy"), line("tr J", "trace_j")]));
      const words = [
        p.frozen ? "Frozen: " : "Soft: ", `under ${rule_name(p.rule)}`,
        ", at d_k = ", put(exact, p, "dk"), " and ", put(exact, p, "keys"), " keys, the spread of ",
        put(digits(3), p, "sigma"), p.frozen ? " is beyond " : " is below ",
        "σ_c = ", put(digits(3), p, "critical_sigma"), ", and the largest weight is ",
        put(digits(3), p, "p_max", "value"), " on average."
      ];
      sentence.replaceChildren(...el("span", {}, words).childNodes);
    }

    // As many workers as there are processors to spare take cell after cell.
    async function fill() {
      const mine = ++run, rule = state.values.rule;
      refusal.textContent = "";
      const left = phase_order().filter((cell) => !points.has(phase_place(cell.dk, cell.keys)));
      let painted = 0;
      const work = async (engine) => {
        for (let cell = left.shift(); cell && mine === run && alive; cell = left.shift()) {
          const found = await engine.call("phase", {dk: [cell.dk], keys: [cell.keys], rules: [rule], ...phase_sizes});
          if (mine !== run) return;
          const place = phase_place(cell.dk, cell.keys);
          points.set(place, note(found, `/phase/${place}`).points[0]);
          progress.value = points.size;
          const now = performance.now(), chosen = here() === points.get(place);
          if (now - painted > 200 || chosen) {
            painted = now;
            figure.redraw();
            if (chosen) tell();
          }
        }
      };
      const spare = Math.max(1, Math.min(3, (navigator.hardwareConcurrency || 2) - 1));
      while (engines.length < spare) engines.push(new Engine());
      try {
        await Promise.all(engines.map(work));
      } catch (error) {
        if (mine === run) say_why(refusal, error);
      }
      figure.redraw();
      tell();
    }
    state.on((changed) => {
      if (changed.has("rule")) {
        points = new Map();
        progress.value = 0;
        if (alive) fill();
      }
      figure.redraw();
      tell();
    });
    panel_node.append(
        el("div", {class: "part-head"}, el("h2", {}, "Phase map"),
           el("p", {}, "Where does attention freeze? Wherever the spread of the scores passes σ_c = √(2 ln n). ",
              "Every cell is a random head, measured while you watch.")),
        el("div", {class: "bench phase"},
           el("div", {class: "live", "data-live": "phase"},
              el("div", {class: "control-row"}, rule_choice({state, name: "rule", label: "Rule"}),
                 choice({state, name: "show", label: "Show", options: phase_measures})),
              figure, sentence, refusal, progress),
           el("div", {class: "setting unbound"}, readout, go)));
    tell();
    return {
      shown() {
        alive = true;
        fill();
      },
      hidden() { alive = false; },
    };
  },
});
