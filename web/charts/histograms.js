// Score histograms by rule: in any experiment whose data has "histograms".

function histograms(data) {
  const list = data.histograms;
  const sizes = unique(list.map((h) => h.dk));
  const usual = sizes.reduce((a, b) => (Math.abs(Math.log(b / 64)) < Math.abs(Math.log(a / 64)) ? b : a));
  const figure = chart({
    label: "Histograms of the scores under each rule.",
    series: rule_series(list.map((h) => h.rule)),
    choices: sizes.length > 1 ? {"d_k": sizes.map((id) => ({id: String(id), label: String(id), first: id === usual}))} : {},
    caption: "Scores under each rule, one axis for all: what softmax is given.",
    draw(stage) {
      const dk = sizes.length > 1 ? stage.chosen["d_k"] : String(sizes[0]);
      const shown_ones = list.filter((h) => String(h.dk) === dk && stage.visible.some((s) => s.id === h.rule));
      const left = 46, right = 12, top = 30, plot = 92, gap = 34, wide = stage.width - left - right;
      const density = (h, j) => h.counts[j] / (h.edges[j + 1] - h.edges[j]);  // bars of one histogram compare by area
      const x = d3.scaleLinear()
                    .domain([d3.min(shown_ones, (h) => h.edges[0]), d3.max(shown_ones, (h) => h.edges[h.edges.length - 1])])
                    .range([0, wide]);
      shown_ones.forEach((h, k) => {
        const g = stage.svg.append("g").attr("transform", `translate(${left},${top + k * (plot + gap)})`);
        const y = d3.scaleLinear().domain([0, d3.max(h.counts, (_, j) => density(h, j)) || 1]).range([plot, 0]);
        label_text(g.append("text").attr("class", "panel-name").attr("x", -left + 4).attr("y", -10), style_of(h.rule).label);
        h.counts.forEach((count, j) => {
          const at = x(h.edges[j]), breadth = Math.max(0.8, x(h.edges[j + 1]) - at);
          mark(
              g.append("rect")
                  .attr("x", at)
                  .attr("width", breadth)
                  .attr("y", y(density(h, j)))
                  .attr("height", plot - y(density(h, j)))
                  .attr("fill", style_of(h.rule).colour),
              ref(h, "counts", j));
          if (count > 0)
            stage.spot(
                left + at + breadth / 2, top + k * (plot + gap) + y(density(h, j)), h.rule,
                [["scores from", ref(h, "edges", j)], ["to", ref(h, "edges", j + 1)], ["count", put(exact, h, "counts", j)]]);
        });
        g.append("line").attr("stroke", "var(--line)").attr("x2", wide).attr("y1", plot).attr("y2", plot);
        if (k + 1 === shown_ones.length) x_axis(g, x, plot, "score", {values: x.ticks(stage.narrow ? 5 : 9), width: wide});
      });
      return top + shown_ones.length * (plot + gap) + 10;
    },
  });
  const tables = list.map(
      (h) => table(
          `Scores under ${h.rule}, d_k = ${h.dk}`, ["from", "to", "count"],
          h.counts.map((_, j) => [ref(h, "edges", j), ref(h, "edges", j + 1), put(exact, h, "counts", j)])));
  return {figure, below: [all_numbers("All numbers: histograms", ...tables)]};
}
