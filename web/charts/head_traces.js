// What each head did while it was trained: σ of its scores and the entropy of its softmax, step by step, a line for every head.

/// data: as `rootdk train --json` has it, also while it is being filled; keys: how many the longest row sees.
function head_traces(data, keys) {
  const sigma_c = Math.sqrt(2 * Math.log(keys));
  const parts = [
    {id: "sigma", name: "σ of a head's scores", log: true, level: {value: sigma_c, words: `σ_c of ${keys} keys`}},
    {id: "entropy", name: "entropy of a head's softmax (nats)", level: {value: Math.log(keys), words: "all keys alike: ln n"}}
  ];
  const traces = () => data.rules.flatMap((r) => r.runs.flatMap((run) => ((run.steps || {}).heads || []).map((head) => ({rule: r.rule, run, head}))));
  return chart({
    label: () => {
      const now = traces().filter(({head}) => head.sigma.length).map(({rule, head}) => {
        const at = (list) => number(list[list.length - 1]);
        return `${rule}, layer ${head.layer}, head ${head.head}: σ ${at(head.sigma)}, entropy ${at(head.entropy)}`;
      });
      return `Spread and entropy of every head over the steps.${now.length ? ` At the last step: ${now.join("; ")}.` : ""}`;
    },
    series: rule_series(data.rules.map((r) => r.rule)),
    caption: "A line for every head: the first layer's thin, later ones thicker. Above σ_c rows freeze: at the start that blocks learning, in the end it may be what was learned.",
    draw(stage) {
      const grid = panels(parts.length, {width: stage.width, least: 300, gap: 30});
      const top = 30, plot = 190, left = 52, right = 8, each = top + plot + 48;
      const shown_ones = traces().filter(({rule}) => stage.visible.some((s) => s.id === rule));
      parts.forEach((part, k) => {
        const [dx, line] = grid.at(k), dy = line * each + top, wide = grid.each - left - right;
        const values = shown_ones.flatMap(({head}) => head[part.id]).filter((v) => isNumber(v) && (!part.log || v > 0));
        const [low, high] = d3.extent([...values, part.level.value]);
        const y = part.log ? d3.scaleLog().domain([Math.min(low, .1) / 1.2, Math.max(high, 8) * 1.3]) : d3.scaleLinear().domain([0, high * 1.12]);
        y.range([plot, 0]);
        const x = d3.scaleLinear().domain([0, data.steps]).range([0, wide]);
        const g = scaled(stage.svg.append("g").attr("transform", `translate(${dx + left},${dy})`), y);
        y_axis(g, y, wide, part.name, 5);
        x_axis(g, x, plot, "step", {values: x.ticks(wide < 300 ? 4 : 6), width: wide});
        g.append("line").attr("class", "reference").attr("x2", wide).attr("y1", y(part.level.value)).attr("y2", y(part.level.value));
        label_text(g.append("text").attr("class", "quiet halo").attr("x", wide).attr("y", y(part.level.value) - 5).attr("text-anchor", "end"), part.level.words);
        for (const {rule, run, head} of shown_ones) {
          const style = style_of(rule), list = head[part.id], ok = (v) => isNumber(v) && (!part.log || v > 0);
          g.append("path").attr("class", "mark").attr("data-path", pointers.get(list)).attr("data-count", list.length).attr("fill", "none")
              .attr("stroke", style.colour).attr("stroke-width", 1.2 + head.layer).attr("stroke-dasharray", style.dash)
              .attr("d", d3.line().defined(ok).x((_, j) => x(run.steps.step[j])).y(y)(list));
          const j = list.length - 1;
          if (j < 0 || !ok(list[j])) continue;
          symbol(g, style, x(run.steps.step[j]), y(list[j]), 40);
          stage.spot(dx + left + x(run.steps.step[j]), dy + y(list[j]), `${rule}, layer ${head.layer}, head ${head.head}, step ${run.steps.step[j]}`,
                     [["σ", ref(head, "sigma", j)], ["entropy", ref(head, "entropy", j)], ["largest weight", ref(head, "p_max", j)]]);
        }
      });
      return grid.rows * each;
    },
  });
}
