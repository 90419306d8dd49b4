// Steps 1 and 2: a dot product is a sum of d_k terms, a random walk; its variance is d_k.

const walk_pairs = 4096, walks_shown = 24;

function sum_figure(state) {
  return live({
    state,
    needs: ["dk"],
    limits: story_limits,
    at: "story/1",
    says: 145,
    name: "walks",
    title: "Dot products growing term by term",
    controls: dk_slider(state),
    ask: ({dk}, call) => call("variance", {dk: [dk], pairs: walk_pairs, components: ["normal"], walks: walks_shown}),
    label: (data) => {
      const ends = data.walks.sums.map((w) => w[w.length - 1]);
      return `${walks_shown} sums q·k growing term by term up to ${data.rows[0].dk} terms. They end between ${
          number(d3.min(
              ends))} and ${number(d3.max(ends))}; the curves plus and minus the root of the number of terms end at ${
          number(Math.sqrt(data.rows[0].dk))}.`;
    },
    draw(stage, data) {
      const left = 40, right = 74, top = 30, plot = stage.narrow ? 240 : 330, wide = stage.width - left - right;
      const dk = data ? data.rows[0].dk : 64;
      const x = d3.scaleLinear().domain([0, dk]).range([0, wide]);
      const reach = data ? Math.max(2.3 * Math.sqrt(dk), d3.max(data.walks.sums, (w) => d3.max(w, Math.abs))) : 18.4;
      const y = d3.scaleLinear().domain([-reach, reach]).range([plot, 0]);
      const g = scaled(stage.svg.append("g").attr("transform", `translate(${left},${top})`), y);
      y_axis(g, y, wide, "sum so far", 7);
      x_axis(g, x, plot, "terms added", {values: x.ticks(stage.narrow ? 4 : 8).filter(Number.isInteger), width: wide});
      const envelope = d3.range(0, 101).map((i) => (dk * i) / 100);
      const band = (k) =>
          d3.area().x((t) => x(t)).y0((t) => y(-k * Math.sqrt(t))).y1((t) => y(k * Math.sqrt(t)))(envelope);
      g.append("path").attr("class", "envelope").attr("d", band(2));
      g.append("path").attr("class", "envelope").attr("d", band(1));
      if (!data) return top + plot + 42;
      const {terms, sums} = data.walks;
      sums.forEach((sum, k) => {
        g.append("path")
            .attr("class", "walk")
            .attr("d", d3.line().x(([t]) => x(t)).y(([, s]) => y(s))([[0, 0], ...terms.map((t, j) => [t, sum[j]])]))
            .style("stroke", `color-mix(in oklab, var(--rule-none) ${40 + (60 * k) / sums.length}%, var(--rule-4))`);
        const last = sum.length - 1;
        mark(
            g.append("circle")
                .attr("cx", x(dk))
                .attr("cy", y(sum[last]))
                .attr("r", 2.6)
                .style("fill", "var(--rule-none)"),
            ref(sum, last), "cy");
        stage.spot(
            left + x(dk), top + y(sum[last]), `pair ${k + 1}`,
            [["q·k", put(digits(4), sum, last)], ["terms", whole(dk)]]);
      });
      for (const [k, words] of [[1, "√d_k"], [2, "2√d_k"], [-1, "−√d_k"], [-2, "−2√d_k"]])
        words_at(g, wide + 9, y(k * Math.sqrt(dk)) + 4, words, {cls: "quiet"});
      return top + plot + 42;
    },
    caption: () =>
        `${walks_shown} pairs of random vectors. Grey: plus and minus once and twice the root of the number of terms.`,
    numbers: (data) => ({
      columns: ["terms", ...data.walks.sums.map((_, k) => `pair ${k + 1}`)],
      rows: data.walks.terms.map((t, j) => [t, ...data.walks.sums.map((sum) => sum[j])])
    }),
    conclude: (data) => {
      const sums = data.walks.sums, last = data.walks.terms.length - 1;
      const low = d3.scan(sums, (a, b) => a[last] - b[last]), high = d3.scan(sums, (a, b) => b[last] - a[last]);
      return [
        "The mean stays at 0, but the sums drift apart: after ", put(exact, data, "rows", 0, "dk"), " terms these ",
        String(walks_shown), " lie between ", put(number, data, "walks", "sums", low, last), " and ",
        put(number, data, "walks", "sums", high, last), ", about as far out as √d_k = ", root_words(data.rows[0].dk),
        " suggests."
      ];
    },
  });
}

/// √d_k to three digits, and no more where it is a whole number.
const root_words = (dk) => short(Math.sqrt(dk));

const law_pairs = 40000, law_dk = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512];

const law_components = [
  {id: "normal", label: "normal"}, {id: "uniform", label: "uniform"}, {id: "rademacher", label: "±1"},
  {id: "student_t5", label: "heavy tails (t, 5 d.o.f.)"}
];

function variance_figure(state) {
  return live({
    state,
    needs: ["dk", "components"],
    limits: story_limits,
    at: "story/2",
    says: 145,
    name: "variance",
    title: "The variance of q·k against d_k",
    controls:
        el("div", {class: "control-row"}, dk_slider(state),
           choice({state, name: "components", label: "Components are", options: law_components})),
    ask: async ({dk, components: kind}, call) => {
      const law = await call("variance", {dk: law_dk, pairs: law_pairs, components: [kind]}, "law", {keep: true});
      const on = law.rows.find((r) => r.dk === dk);
      const here = on || (await call("variance", {dk: [dk], pairs: law_pairs, components: [kind]}, "here")).rows[0];
      return {law, here, rows: on ? law.rows : [...law.rows, here].sort((a, b) => a.dk - b.dk)};
    },
    label: (data) =>
        "The nine products of a squared sum of three terms: three squares of mean near 1, six mixed ones of mean near 0. " +
        `Beside it the measured variance of q·k against d_k: ${
            data.rows.map((r) => `${number(r.variance)} at ${r.dk}`).join(", ")}.`,
    draw(stage, data) {
      const beside = stage.width > 620, top = 34;
      const cell = beside ? 58 : 54, square = 3 * cell, left_of_square = 46;
      // The nine products.
      const g9 = panel(stage, left_of_square, top + 18, "", null);
      words_at(stage.svg, 0, 14, "three terms, squared: nine means", {cls: "panel-name"});
      const names = ["q₁k₁", "q₂k₂", "q₃k₃"];
      names.forEach((name, i) => {
        words_at(g9, (i + 0.5) * cell, -7, name, {cls: "quiet", anchor: "middle"});
        words_at(g9, -7, (i + 0.5) * cell + 4, name, {cls: "quiet", anchor: "end"});
      });
      for (let i = 0; i < 3; ++i)
        for (let j = 0; j < 3; ++j) {
          const term = data && data.law.square_terms[3 * i + j];
          const box = g9.append("rect")
                          .attr("class", i === j ? "term diagonal" : "term")
                          .attr("x", j * cell + 1)
                          .attr("y", i * cell + 1)
                          .attr("width", cell - 2)
                          .attr("height", cell - 2)
                          .attr("rx", 3);
          if (!term) continue;
          mark(box, ref(term, "mean"));
          const middle = j * cell + cell / 2;
          words_at(
              g9, middle, i * cell + cell / 2, brief_signed(term.mean),
              {cls: i === j ? "in-cell strong" : "in-cell", anchor: "middle"});
          words_at(
              g9, middle, i * cell + cell / 2 + 15, `±${(2 * term.standard_error).toFixed(2)}`,
              {cls: "in-cell quiet small", anchor: "middle"});
          stage.spot(left_of_square + middle, top + 18 + i * cell + cell / 2, `mean of ${names[i]} · ${names[j]}`, [
            ["measured", put(digits(4), term, "mean")], ["standard error", put(digits(2), term, "standard_error")],
            ["expected", put(exact, term, "expected")]
          ]);
        }
      // The law.
      const left = beside ? left_of_square + square + 84 : 46, dy = beside ? top : top + 18 + square + 62;
      const plot = beside ? 250 : 220, wide = stage.width - left - 14;
      const x = d3.scaleLog().domain([1, 512]).range([10, wide - 10]);
      const y = d3.scaleLog().domain([0.5, 1500]).range([plot, 0]);
      words_at(stage.svg, left - 40, dy - 20, "d_k terms: the variance of their sum", {cls: "panel-name"});
      const g = scaled(stage.svg.append("g").attr("transform", `translate(${left},${dy})`), y);
      y_axis(g, y, wide, "", 5);
      x_axis(g, x, plot, "d_k", {values: stage.width < 420 ? [1, 4, 16, 64, 256] : law_dk, width: wide});
      g.append("path").attr("class", "predicted").attr("d", d3.line()([[x(1), y(1)], [x(512), y(512)]]));
      line_at(g, [6, 20], [28, 20], "predicted");
      words_at(g, 34, 24, "variance = d_k", {cls: "halo quiet"});
      if (data) {
        const current = data.here;
        g.append("path").attr("class", "guide").attr("d", `M${x(current.dk)},${plot}V${y(current.variance)}H0`);
        for (const r of data.rows) {
          const on = r === current;
          line_at(g, [x(r.dk), y(r.ci95[0])], [x(r.dk), y(r.ci95[1])], "interval");
          mark(
              g.append("circle")
                  .attr("cx", x(r.dk))
                  .attr("cy", y(r.variance))
                  .attr("r", on ? 6.5 : 4)
                  .style("fill", on ? "var(--rule-none)" : "var(--accent)"),
              ref(r, "variance"), "cy");
          stage.spot(left + x(r.dk), dy + y(r.variance), `d_k = ${whole(r.dk)}`, [
            ["measured variance", put(digits(4), r, "variance")], ["95 % interval", interval(r, "ci95", digits(4))],
            ["expected", put(digits(4), r, "expected")]
          ]);
        }
        const end = x(current.dk) > wide * 0.62;
        words_at(
            g, x(current.dk) + (end ? -11 : 11), y(current.variance) + (end ? -8 : 18), number(current.variance),
            {cls: "halo strong", anchor: end ? "end" : "start"});
      }
      return dy + plot + 42;
    },
    caption: () => `Measured over ${
        whole(law_pairs)} pairs, with 95 % intervals (± two standard errors in the square); the line is the law.`,
    numbers: (data) => ({
      columns:
          ["components", "dk", "variance", "low95", "high95", "expected", "variance_over_sqrt_dk", "variance_over_dk"],
      rows: data.rows.map(
          (r) => [r.distribution, r.dk, r.variance, ...r.ci95, r.expected, r.variance_over_sqrt_dk, r.variance_over_dk])
    }),
    conclude: (data) => {
      const r = data.here;
      const holds = r.ci95[0] <= r.expected && r.expected <= r.ci95[1];
      return [
        holds ? "The law holds: " : "The law holds, give or take (one interval in twenty should miss): ", "at d_k = ",
        put(exact, r, "dk"), " the measured variance is ", put(digits(4), r, "variance"), " (95 % interval ",
        interval(r, "ci95", digits(4)), "), so a score is typically √d_k = ", root_words(r.dk), " away from 0."
      ];
    },
  });
}

/// Two decimals and a true minus; 0 where there is nothing to see.
const brief_signed = (x) => x.toFixed(2).replace("-0.00", "0.00").replace("-", "−");
