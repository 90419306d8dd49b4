// Your own: a row of scores, or a query and its keys, worked through step by step; arrays from files under every rule.

/// "14, 10, 12" → one row; several rows of one length: a query, then its keys. Anything between numbers parts them.
function numbers_in(text) {
  const rows = text.replace(/[−–]/g, "-")
                   .split(/[\n;|]+/)
                   .map((line) => line.replace(/^\s*[a-zA-Z_]\w*\s*[=:]/, ""))
                   .map((line) => line.trim())
                   .filter((line) => line !== "");
  return rows.map((line) => {
    const words = line.replace(/[[\](){}]/g, " ").split(/[\s,]+/).filter(Boolean);
    const bad = words.find((w) => !/^[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?$/i.test(w) || !Number.isFinite(Number(w)));
    if (bad !== undefined)
      throw new EngineError(
          `"${bad}" is not a number; numbers separated by commas or spaces are wanted, one line for each vector`);
    return words.map(Number);
  });
}

/// What explain is asked for that text.
function explain_question({text, dk, rules}) {
  const rows = numbers_in(text);
  if (!rows.length) throw new EngineError("nothing yet: type the scores of one query, such as 14, 10, 12");
  if (!rules.length) throw new EngineError("rules: none chosen, but at least one is wanted");
  if (rows.length === 1) return {scores: rows[0], dk, rules};
  const odd = rows.findIndex((row) => row.length !== rows[0].length);
  if (odd > 0)
    throw new EngineError(
        `line ${odd + 1} has ${rows[odd].length} numbers, but the query on line 1 has ${rows[0].length}`);
  return {q: rows[0], k: rows.slice(1), rules};
}

/// A number as it was typed, and a sum of such without the dust of binary fractions.
const plain = (x) => exact(Number(x.toPrecision(12)));

const own_examples = [
  {words: "14, 10, 12", text: "14, 10, 12", dk: 64},
  {words: "50, 10, 5", text: "50, 10, 5", dk: 100},
  {words: "−20, 3, 25, −15", text: "-20, 3, 25, -15", dk: 64},
  {words: "a query and two keys", text: "q = 1, 0, 1, 0\nk = 0, 1, 1, 1\nk = 1, 1, 0, 0", dk: 4},
];

/// Of a row of scores without its vectors: what asks for nothing else.
const row_rules = Object.values(usual_scales).flat().filter((rule) => !/^(unit_variance|constant)/.test(rule));

const most_worked = 24;  // keys, or components, that a table has room for; the CSV has all
const first_of = (n) => d3.range(Math.min(n, most_worked));
const of_many = (n, what) => (n > most_worked ? `, the first ${most_worked} of ${whole(n)} ${what}` : "");

/// Every step of one rule, keys as columns: what one would write on a blackboard.
function worked_steps(data, rule) {
  const keys = first_of(rule.scores.length);
  const row = (words, cells, note_of) => [el("span", {}, words), ...cells, note_of || ""];
  const rows = [];
  rows.push(row("score q·k", keys.map((j) => put(plain, data, "raw_scores", j))));
  rows.push(
      row(["divided by ", put(short, rule, "divisor")], keys.map((j) => put((x) => short(x, 4), rule, "scores", j))));
  rows.push(
      row("e to that power", keys.map((j) => put(digits(5), rule, "exp", j)),
          el("span", {}, "sum ", put(digits(5), rule, "exp_sum"))));
  rows.push(
      row("divided by the sum: the weight", keys.map((j) => el("strong", {}, put(digits(3), rule, "softmax", j))),
          el("span", {}, "sum 1")));
  rows.push(row("gradient on the weight", keys.map((j) => put(plain, data, "upstream_gradient", j))));
  rows.push(row("at the score", keys.map((j) => put(digits(3), rule, "score_gradient", j))));
  rows.push(row("at q·k", keys.map((j) => put(digits(3), rule, "raw_gradient", j))));
  return table(
      `${rule_name(rule.rule)}: step by step${of_many(rule.scores.length, "keys")}`,
      [{title: "step", left: true}, ...keys.map((j) => `key ${j + 1}`), {title: "all keys", left: true}], rows);
}

function worked(data) {
  const terms = data.q ? first_of(data.q.length) : [];
  const dot = data.q ? table(
                           `The dot products, term by term${of_many(data.q.length, "components")}`,
                           [{title: "component", left: true}, ...terms.map((i) => String(i + 1)), {title: "sum: q·k"}],
                           [
                             ["q", ...terms.map((i) => put(plain, data, "q", i)), ""],
                             ...first_of(data.k.length)
                                 .map(
                                     (j) =>
                                         [`k ${j + 1}`, ...terms.map((i) => put(plain, data, "k", j, i)),
                                             el("strong", {}, put(plain, data, "raw_scores", j))])
                           ]) :
                       null;
  const summary = table(
      "The outcome under each rule",
      [{title: "rule", left: true}, "divided by", "largest weight", "entropy", "effective keys", "tr J", "‖J‖²"],
      data.rules.map(
          (r) =>
              [rule_name(r.rule), put(short, r, "divisor"), put(digits(3), r, "p_max"), put(digits(3), r, "entropy"),
               put(digits(3), r, "effective_keys"), put(digits(3), r, "trace_j"),
               put(digits(3), r, "frobenius_j")]));
  const jacobians =
      data.rules.filter((r) => r.jacobian && r.jacobian.length <= 12)
          .map(
              (r) => table(
                  `Jacobian ∂p_i/∂s_j: ${rule_name(r.rule)}`,
                  [{title: "i", left: true}, ...r.jacobian.map((_, j) => `j = ${j + 1}`)],
                  r.jacobian.map(
                      (line, i) => [String(i + 1), ...line.map((_, j) => put(digits(3), r, "jacobian", i, j))])));
  return [
    dot, summary, el("div", {class: "worked"}, data.rules.map((r) => worked_steps(data, r))),
    jacobians.length ? all_numbers("The Jacobians", ...jacobians) : null
  ];
}

const row_measures = [
  {id: "softmax", label: "weights after softmax"}, {id: "score_gradient", label: "gradient at the scores"},
  {id: "raw_gradient", label: "gradient at q·k"}
];
/// The bars of the report's explain chart, drawn anew with every answer.
function own_bars(state) {
  return {
    name: "own-row",
    title: "Your row under each rule",
    choices: {Show: row_measures},
    address: {menus: {Show: "show"}},
    label: (data) => `Bars: the weights of your row. ${
        data.rules
            .map(
                (r) => `${rule_name(r.rule)}: ${r.softmax.slice(0, 12).map((p) => number(p)).join(", ")}${
                    r.softmax.length > 12 ? ", …" : ""}`)
            .join("; ")}.`,
    draw(stage, data) {
      const rules = data ? data.rules : state.values.rules.map((rule) => ({rule})), what = stage.chosen.Show;
      const grid = panels(Math.max(1, rules.length), {width: stage.width, least: 250, gap: 26});
      const top = 46, plot = 180, left = 44, each = top + plot + 46;
      const values = data ? rules.flatMap((r) => r[what]) : [0, 1];
      const y =
          d3.scaleLinear()
              .domain(what === "softmax" ? [0, 1] : [Math.min(0, d3.min(values)), Math.max(1e-12, d3.max(values))])
              .range([plot, 0]);
      if (what !== "softmax") y.nice(4);
      const n = data ? data.raw_scores.length : 3,
            order = data && n > 64 ? by_weight({p: data.rules[0].softmax}).slice(0, 64) : d3.range(n);
      rules.forEach((rule, k) => {
        const [dx, line] = grid.at(k), dy = line * each + top, wide = grid.each - left;
        const g = scaled(stage.svg.append("g").attr("transform", `translate(${dx + left},${dy})`), y);
        y_axis(g, y, wide, "", 4);
        words_at(g, -left + 4, -28, rule_name(rule.rule), {cls: "panel-name", fill: ink_of(colour_of(rule.rule))});
        if (!data) return;
        const x = d3.scaleBand().domain(order).range([0, wide]).padding(n > 24 ? 0.1 : 0.28),
              roomy = x.bandwidth() >= 30;
        for (const j of order) {
          const value = rule[what][j], height = Math.abs(y(value) - y(0));
          mark(
              g.append("rect")
                  .attr("x", x(j))
                  .attr("width", x.bandwidth())
                  .attr("y", Math.min(y(value), y(0)))
                  .attr("height", height)
                  .attr("rx", Math.min(2, height / 2))
                  .style("fill", colour_of(rule.rule)),
              ref(rule, what, j), "height");
          if (roomy)
            g.append("text")
                .attr("class", "halo")
                .attr("x", x(j) + x.bandwidth() / 2)
                .attr("y", value < 0 ? y(value) + 14 : y(value) - 5)
                .attr("text-anchor", "middle")
                .style("font-size", x.bandwidth() < 64 ? "10.5px" : null)
                .text(number(
                    value,
                    Math.abs(value) < 1e-4 ? (x.bandwidth() >= 64 ? 3 : 1) : x.bandwidth() >= 44 ? 3 : 2));
          stage.spot(dx + left + x(j) + x.bandwidth() / 2, dy + y(value), `key ${j + 1}`, [
            ["q·k", put(plain, data, "raw_scores", j)], ["score", put(digits(4), rule, "scores", j)],
            ["weight", put(digits(4), rule, "softmax", j)],
            ["gradient at score", put(digits(3), rule, "score_gradient", j)],
            ["gradient at q·k", put(digits(3), rule, "raw_gradient", j)]
          ], {bar: {half: x.bandwidth() / 2, base: dy + y(0)}});
        }
        line_at(g, [0, y(0)], [wide, y(0)], "floor");
        x_axis(g, x, plot, k ? "" : "q·k of each key", {
          width: wide,
          values: roomy ? order : order.filter((_, i) => i % Math.ceil(order.length / 6) === 0),
          format: (j) => short(data.raw_scores[j], 4)
        });
      });
      return grid.rows * each;
    },
    caption: (data) =>
        [data && data.raw_scores.length > 64 ? "The 64 keys that weigh most under the first rule. " :
                                               "Keys in order, with q·k beneath. ",
         "Gradients start as 1 on the largest weight and 0 elsewhere."],
    numbers: (data) => ({
      columns: ["rule", "key", "q·k", "score", "exp", "weight", "gradient_at_score", "gradient_at_qk"],
      rows: data.rules.flatMap(
          (r) => r.scores.map(
              (_, j) =>
                  [r.rule, j + 1, data.raw_scores[j], r.scores[j], r.exp[j], r.softmax[j], r.score_gradient[j],
                   r.raw_gradient[j]]))
    })
  };
}

/// Three places for files, by name or by being dropped on.
function arrays_section(state) {
  const arrays = {}, names = ["q", "k", "v"], engine = new Engine();  // its own: a large file would hold up the page
  const told = Object.fromEntries(
      names.map((n) => [n, el("span", {class: "file-told"}, n === "v" ? "not needed" : "none yet")]));
  const refusal = el("p", {class: "refused", role: "alert"}), out = el("div", {class: "whatif"}),
        busy = el("p", {class: "note", role: "status"});
  const causal = el("input", {type: "checkbox", id: control_id()});
  const command = el("code", {"data-at": "/own/whatif"});
  const save = save_files(names, () => arrays);
  const how =
      el("details", {class: "how", hidden: ""}, el("summary", {}, "The same numbers in a terminal"), command, save);
  const tied = in_address(state, {menus: {Show: "arrays_show"}, off: "arrays_off"});

  let under_way = null;
  async function compute() {
    if (!arrays.q || !arrays.k) return;
    if (under_way) under_way.abort();  // what is newer does not wait for it
    const mine = under_way = new AbortController();
    const question = {q: arrays.q, k: arrays.k, v: arrays.v, causal: causal.checked};
    busy.textContent = "Computing …";
    try {
      const found = note(await engine.call("whatif", question, {signal: mine.signal}), "/own/whatif");
      refusal.textContent = "";
      const part = experiments.whatif(found);
      with_saving(part.figure, {
        name: "whatif",
        title: "Your head under every rule",
        numbers: () => ({
          columns: Object.keys(found.rows[0]).filter((c) => c !== "heads"),
          rows: found.rows.map((r) => Object.keys(found.rows[0]).filter((c) => c !== "heads").map((c) => r[c]))
        })
      });
      tied(part.figure);
      command.textContent = command_of("whatif", question);
      how.hidden = false;
      save.hidden = !names.every((n) => arrays[n] && arrays[n].random);
      out.replaceChildren(
          el("p", {class: "says"}, ref(found, "conclusion")), part.figure, ...part.below.filter(Boolean));
    } catch (error) {
      if (mine.signal.aborted) return;
      if (!(error instanceof EngineError)) throw error;
      refusal.textContent = visible(error.message);
    } finally {
      if (mine === under_way) {
        under_way = null;
        busy.textContent = "";
      }
    }
  }
  function take(name, file) {
    arrays[name] = file;  // read by the engine, in its worker
    told[name].textContent = `${visible(file.name)}, ${whole(file.size)} bytes`;
    refusal.textContent = "";
    compute();
  }
  /// By the name's last letter before .npy (q.npy, layer3_k.npy), else into the first place that is free.
  function sort_in(files) {
    const left = [];
    for (const file of files) {
      const name = (/(?:^|[^a-z])([qkv])(?:uery|uer(?:y|ies)|eys?|alues?)?[^a-z]*\.npy$/i.exec(file.name) || [])[1];
      if (name)
        take(name.toLowerCase(), file);
      else
        left.push(file);
    }
    for (const file of left) take(names.find((n) => !arrays[n]) || "q", file);
  }
  const pick = (name) => {
    const id = control_id(), input = el("input", {type: "file", id, accept: ".npy"});
    input.addEventListener("change", () => input.files[0] && take(name, input.files[0]));
    return el("div", {class: "file"}, el("label", {for: id
              }, `${name}.npy`), input, told[name]);
  };
  const zone =
      el("div", {class: "drop"},
         el("p", {},
            "Drop q.npy, k.npy and, if you like, v.npy here, or choose them. Their shape is [[[batch,] heads,] " +
                "length, dim]. They stay in this page."),
         el("div", {class: "files"}, names.map(pick)));
  for (const kind of ["dragenter", "dragover"])
    zone.addEventListener(kind, (event) => {
      event.preventDefault();
      zone.classList.add("over");
    });
  zone.addEventListener("dragleave", () => zone.classList.remove("over"));
  zone.addEventListener("drop", (event) => {
    event.preventDefault();
    zone.classList.remove("over");
    sort_in(event.dataTransfer.files);
  });
  causal.addEventListener("change", compute);
  const example = el("button", {type: "button", class: "plain-button"}, "Use a random head");
  example.addEventListener("click", () => {
    for (const [n, length, seed, spread] of [["q", 64, 3, 1.4], ["k", 256, 4, 1.4], ["v", 256, 5, 1]]) {
      arrays[n] = Object.assign(random_head(n, length, 64, seed, spread), {random: true});
      told[n].textContent = `random: ${length} × 64`;
    }
    compute();
  });
  return el(
      "section", {class: "own-arrays", "aria-labelledby": "own-arrays-title"},
      el("h3", {id: "own-arrays-title"}, "Arrays: your head under every rule"), zone,
      el("div", {class: "toggle control"}, causal, el("label", {for: causal.id
         }, "causal: no key after the query's own"), example), busy, refusal, out, how);
}

site_part({
  id: "own",
  title: "Your own",
  defaults: {
    text: "14, 10, 12",
    dk: 64,
    rules: ["none", "sqrt_dk", "dk"],
    show: row_measures[0].id,
    arrays_show: "relative_entropy",
    arrays_off: []
  },
  valid: {
    show: one_of(row_measures.map((m) => m.id)),
    arrays_show: one_of(whatif_measures.map((m) => m.id))
  },
  make(panel_node, state) {
    const id = control_id();
    const area = el("textarea", {id, rows: 4, spellcheck: "false", "aria-describedby": `${id}-help`});
    const follow = () => {
      if (document.activeElement !== area) area.value = state.values.text;
      dk_box.hidden = vectors();
    };
    const vectors = () => {
      try {
        return numbers_in(state.values.text).length > 1;
      } catch {
        return false;
      }
    };
    area.addEventListener("input", () => state.set({text: area.value}));
    const dk_box = number_box({
      state,
      name: "dk",
      label: "d_k",
      hint: "length of q and k: scores alone do not show it",
      min: 1,
      max: 65536
    });
    const rules =
        el("fieldset", {class: "control checks"}, el("legend", {}, "Rules"),
           row_rules.map((rule) => {
             const box =
                 el("input", {type: "checkbox", id: control_id(), value: rule, "aria-label": rule_name(rule)});
             const mirror = () => (box.checked = state.values.rules.includes(rule));
             box.addEventListener(
                 "change", () => state.set({
                   rules: unique([...row_rules, ...state.values.rules])
                              .filter((one) => (one === rule ? box.checked : state.values.rules.includes(one)))
                 }));
             state.on((changed) => changed.has("rules") && mirror());
             mirror();
             return el("span", {class: "check"}, box, el("label", {for: box.id
                       }, rule_name(rule)));
           }));
    state.on(follow);
    const box = live({
      state,
      needs: ["text", "dk", "rules"],
      at: "own",
      says: 265,
      now: true,
      ask: (values, call) => call("explain", explain_question(values)),
      ...own_bars(state),
      conclude: (data) => [ref(data, "conclusion")],
      more: worked,
    });
    panel_node.append(
        el("div", {class: "part-head"}, el("h2", {}, "Your own"),
           el("p", {},
              "Your numbers, worked through as on a blackboard. Nothing leaves this page; what you type goes into " +
                  "its address, so that you can pass it on.")),
        el("div", {class: "bench"},
           el("form", {class: "setting unbound", "aria-label": "Your numbers"},
              el("div", {class: "control"},
                 el("label",
                    {for: id
                    },
                    "Scores, or vectors"),
                 area,
                 el("p", {class: "note", id: `${id}-help`},
                    "One line: the scores q·k of one query. Several lines: a query, then its keys.")),
              el("div", {class: "examples", role: "group", "aria-label": "Examples"}, own_examples.map((e) => {
                const button = el("button", {type: "button", class: "plain-button"}, e.words);
                button.addEventListener("click", () => state.set({text: e.text, dk: e.dk}));
                return button;
              })),
              dk_box, rules),
           box.node),
        arrays_section(state));
    panel_node.querySelector("form").addEventListener("submit", (event) => event.preventDefault());
    follow();
  },
});
