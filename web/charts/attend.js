// Attention on somebody's own arrays: what the scores of each head did, as bars.

experiments.attend = (data) => {
  const most = 64;  // bars; the table has all
  const measures = [
    {label: "mean largest weight", of: (h) => ref(h, "mean_p_max"), whole: true},
    {label: "largest score", of: (h) => ref(h, "score_max")},
    {label: "variance of scores within a row", of: (h) => ref(h, "score_within_row_variance")},
    {label: "entropy", of: (h) => ref(h, "entropy")},
    {label: "effective keys", of: (h) => ref(h, "effective_keys")},
    {label: "tr J: gradient let through", of: (h) => ref(h, "trace_j"), whole: true},
    {label: "rows with a weight above 0.99", of: (h) => ref(h, "share_p_max_over_99pct"), whole: true}
  ].filter((m) => data.heads.some((h) => isNumber(m.of(h).value))).map((m, i) => ({...m, id: String(i)}));
  if (!measures.length) return {below: []};
  const name = (h) => (data.batch > 1 ? `item ${h.batch}, head ${h.head}` : `head ${h.head}`);
  const figure = chart({
    label: "What the scores of each head did.",
    choices: {Show: measures},
    caption: [
      put(exact, data, "len_q"), " queries on ", put(exact, data, "len_kv"), " keys, d_k = ", put(exact, data, "dk"),
      ", rule ", ref(data, "rule"), data.causal ? ", causal" : "",
      data.heads.length > most ? `; the first ${most} of ${data.heads.length} heads` : "", "."
    ],
    draw(stage) {
      const what = measures.find((m) => m.id === stage.chosen.Show), rows = data.heads.slice(0, most);
      return row_bars(stage, {
        rows,
        name,
        value: (h) => (isNumber(what.of(h).value) ? Math.max(0, what.of(h).value) : null),
        reference: what.of,
        axis: what.label,
        colour: () => "var(--rule-sqrt_dk)",
        text: number,
        most: what.whole ? 1 : d3.max(rows, (h) => what.of(h).value) || 1,
        tip: (h) => measures.map((m) => [m.label, m.of(h)])
      });
    },
  });
  const rows = table(
      "Every head",
      [{title: "head", left: true}, ...measures.map((m) => m.label), "rows", "rows not finite", "rows that see nothing"],
      data.heads.map((h) => [
        name(h), ...measures.map((m) => m.of(h)), put(exact, h, "row_count"), put(exact, h, "rows_not_finite"),
        put(exact, h, "rows_masked")
      ]));
  return {figure, formula: "explain", below: [all_numbers("All numbers", rows)]};
};
