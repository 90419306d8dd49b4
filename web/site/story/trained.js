// Beside step 4: freezing at the start blocks learning, sharpness at the end is learned. The heads of the sample that
// ships with the page, before its training and after.

const trained_rows = [{id: "untrained", label: "before training"}, {id: "trained", label: "after training"}];
const heads_of = (audit) => audit.layers.flatMap((layer) => layer.heads.map((head) => ({layer: layer.layer, head})));
/// Where inputs are like the embeddings, which the audit can know; σ_c is for the keys it judged at.
const sigma_of = (head) => ref(head, "embeddings", "sigma");
const over_critical = (head, audit) => head.sigma_over_critical[String(audit.judged_at)];

function trained_figure(state) {
  return live({
    state,
    needs: [],
    at: "story/trained",
    says: 178,
    name: "trained",
    title: "The spread of every head before and after training",
    ask: async (_, call) => {
      const out = {};
      for (const {id} of trained_rows)
        out[id] = await call("audit", {checkpoint: await sample_checkpoint(id)}, id, {keep: true});
      return out;
    },
    label: (data) => trained_rows
                         .map(({id, label}) => {
                           const [low, high] = d3.extent(heads_of(data[id]), ({head}) => sigma_of(head).value);
                           return `The spread of the heads' scores ${label}: from ${number(low)} to ${number(high)}`;
                         })
                         .join(". ") +
        ".",
    draw(stage, data) {
      const names = stage.width > 480, left = names ? 130 : 8, wide = stage.width - left - 14, line = names ? 48 : 62,
            top = 26;
      const plot = line * trained_rows.length;
      const x = d3.scaleLog().domain([0.5, 5]).range([0, wide]).clamp(true);
      const g = scaled(stage.svg.append("g").attr("transform", `translate(${left},${top})`), x);
      const values = [0.5, 1, 2, 3, 4, 5];
      const first = data && heads_of(data.untrained)[0].head;
      const critical = first ? sigma_of(first).value / over_critical(first, data.untrained) : 2.5;
      g.append("rect")
          .attr("class", "frozen-zone")
          .attr("x", x(critical))
          .attr("width", wide - x(critical))
          .attr("height", plot);
      words_at(g, x(critical) + 6, -10, "beyond σ_c", {cls: "quiet"});
      g.append("g")
          .attr("class", "grid")
          .selectAll("line")
          .data(values)
          .join("line")
          .attr("x1", x)
          .attr("x2", x)
          .attr("y2", plot);
      line_at(g, [x(1), -4], [x(1), plot], "right-line");
      words_at(g, x(1), -10, "1", {cls: "strong", anchor: "middle"});
      x_axis(g, x, plot, "spread σ of a head's scores", {values, width: wide});
      trained_rows.forEach(({id, label}, k) => {
        const y = k * line + (names ? line / 2 : line - 18);
        words_at(g, names ? -12 : 0, names ? y + 4 : y - 24, label, {anchor: names ? "end" : "start"});
        if (!data) return;
        heads_of(data[id]).forEach(({layer, head}, i, all) => {
          const cy = y + ((i % 4) - 1.5) * 5;
          mark(
              g.append("circle")
                  .attr("class", "head-dot")
                  .attr("cx", x(sigma_of(head).value))
                  .attr("cy", cy)
                  .attr("r", 4.5)
                  .style("fill", colour_of("sqrt_dk")),
              sigma_of(head), "cx");
          stage.spot(left + x(sigma_of(head).value), top + cy, `layer ${layer}, head ${head.head}, ${label}`, [
            ["spread σ", put(digits(3), head, "embeddings", "sigma")],
            ["over σ_c", put(digits(3), head, "sigma_over_critical", String(data[id].judged_at))]
          ]);
        });
      });
      return top + plot + 42;
    },
    caption: () =>
        "Each dot is a head of a small transformer that learned to recall pairs under 1/√d_k: its spread on the " +
        "embeddings, as the audit finds it, against σ_c for the length it was trained at.",
    numbers: (data) => ({
      columns: ["model", "layer", "head", "sigma", "sigma_over_critical"],
      rows: trained_rows.flatMap(
          ({id}) => heads_of(data[id]).map(
              ({layer, head}) => [id, layer, head.head, sigma_of(head).value, over_critical(head, data[id])]))
    }),
    conclude: (data) => {
      const sorted = (id) =>
          heads_of(data[id]).map(({head}) => head).sort((a, b) => sigma_of(a).value - sigma_of(b).value);
      const before = sorted("untrained"), after = sorted("trained");
      const between = (heads) =>
          [put(digits(2), heads[0], "embeddings", "sigma"), " to ",
           put(digits(2), heads[heads.length - 1], "embeddings", "sigma")];
      const sharp = after.filter((head) => head.verdict !== "soft").length;
      return [
        "It has learned to be sharp: the spread of its heads was ", between(before), ", and is ", between(after),
        " now; ", String(sharp), " of ", String(after.length), " are sharp or frozen."
      ];
    },
  });
}

/// The claim, and the figure where the page has the sample.
function trained_remark(state) {
  return el(
      "aside", {class: "remark", "aria-labelledby": "remark-title"},
      el("div", {}, el("h3", {id: "remark-title"}, "Frozen at the start, or learned in the end"),
         para(
             "From half of σ_c on a few keys have most of a row's weight, and we call it ", term("sharp"),
             ". Freezing at the start blocks learning; sharpness at the end is learned. A row that starts frozen " +
                 "holds on to a key that chance has picked, and gets no gradient to let go of it. A trained head may " +
                 "well end up as sharp, on keys that training has picked.")),
      trained_figure(state).node);
}
