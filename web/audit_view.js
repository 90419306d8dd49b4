// What an audit found, as parts of a page: a map of layers × heads, what moved since another checkpoint, one head in detail, and
// all of them in a table. It takes the JSON of `rootdk audit`, noted (values.js); pages and tabs put its parts where they want.

const kVerdicts = {  // from serious to harmless: what a word means
  not_finite: {word: "not finite", means: "NaN or Inf among its weights, or in products of them"},
  exploding: {word: "exploding", means: "scores so large that 16-bit formats round differences away that softmax would see"},
  frozen: {word: "frozen", means: "spread beyond σ_c: one key takes most of the weight, and little gradient comes back"},
  uniform: {word: "uniform", means: "every key gets nearly the same weight: the head does not look at anything"},
  sharp: {word: "sharp", means: "spread beyond half of σ_c: few keys take most, which may be learned"},
  sink: {word: "sink", means: "the sink takes most of the probability"},
  outliers: {word: "outliers", means: "the spread lies where softmax does not see it"},
  soft: {word: "soft", means: "none of these: the spread is well below σ_c"},
  unknown: {word: "unknown", means: "too little is known to say"},
};
const verdict_word = (name) => (Object.hasOwn(kVerdicts, name) ? kVerdicts[name].word : String(name));

const kGrounds = {
  measured: {name: "measured", says: "on activations of this model"},
  embeddings: {name: "on the embeddings", says: "which would hold if every layer's inputs were like the normalised embeddings"},
  weights: {
    name: "from the weights alone",
    says: "which would hold if inputs were isotropic, and queries and keys independent; in a trained model they are not, " +
        "and σ is often several times as large"
  },
};
const ground_of = (head) => kGrounds[head.ground] || kGrounds.weights;
const kMostRows = 500;

/// A value of a head that is a name of a verdict, in words.
const verdict_shown = (reference) => {
  const node = shown(reference);
  node.textContent = verdict_word(reference.value);
  return node;
};

function copy_button(text) {
  const button = el("button", {type: "button"}, "Copy");
  button.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(text);
    } catch (error) {  // pages from files may not use it
      const area = el("textarea", {class: "unseen"});
      area.value = text;
      document.body.append(area);
      area.select();
      document.execCommand("copy");
      area.remove();
    }
    button.textContent = "Copied";
  });
  return button;
}

/// → {map, drift (or null), head, table: sections; heads; judged: keys that verdicts are for; numbers(): {columns, rows};
/// chosen(): the name of the head that is shown; choose(name), if there is one; watch(called when another may be)}.
/// prefix: of their ids.
function audit_view(audit, {prefix = ""} = {}) {
  const {layers} = audit, kinds = new Set(layers.map((l) => l.attention));
  const heads = layers.flatMap((layer, row) => layer.heads.map((head, column) => ({layer, head, row, column})));
  const contexts = audit.contexts.map(String);
  const judged = contexts.includes(String(audit.judged_at)) ? String(audit.judged_at) : contexts[contexts.length - 1];
  const row_name = (layer) => (kinds.size > 1 ? `${visible(layer.attention)} ${layer.layer}` : `${layer.layer}`);
  const name_of = (one) => `${row_name(one.layer)}.${one.head.head}`;
  const long_name = (one) => `layer ${row_name(one.layer)}, head ${one.head.head}`;
  const verdicts = Object.keys(kVerdicts).filter((v) => heads.some((one) => one.head.verdict === v));

  let chosen = null, filter = {verdict: "all", text: ""};
  const passes = (one) =>
      (filter.verdict === "all" || one.head.verdict === filter.verdict) && name_of(one).includes(filter.text);
  const watchers = [];
  const changed = () => watchers.forEach((watch) => watch());
  function choose(one, go = false) {
    chosen = one;
    changed();
    if (go) head_part.scrollIntoView({block: "nearest"});
  }

  // σ as each ground has it: whatever the JSON holds stands side by side. ------------------------------------------------

  const sigmas = [
    {title: "σ from the weights", short: "σ weights", of: (h) => ref(h, "sigma"), ground: "weights"},
    {title: "σ on the embeddings", short: "σ embeddings", of: (h) => ref(h, "embeddings", "sigma"), ground: "embeddings"},
    {title: "σ measured", short: "σ measured", of: (h) => ref(h, "measured", "sigma"), ground: "measured"}
  ].filter((s) => s.ground === "weights" || heads.some((one) => one.head[s.ground]));

  /// What is known in several ways, in the surest of them: what the verdict stands on.
  const surest = (head, key) => {
    const ground = ["measured", "embeddings"].find((id) => head[id]);
    return ground ? ref(head, ground, key) : ref(head, key);
  };
  const badge_of = (head) => el("span", {class: `ground ${head.ground || "weights"}`}, ground_of(head).name);

  function ground_note() {
    const stands = heads.filter((one) => one.head.verdict !== "not_finite");  // that holds for any input
    const lines = Object.entries(kGrounds).map(([id, {name, says}]) => {
      const count = stands.filter((one) => ground_of(one.head) === kGrounds[id]).length;
      return count ? el("p", {}, el("span", {class: `ground ${id}`}, name), ` ${counted(count, "verdict")}, ${says}.`) : null;
    });
    return el("div", {class: "ground-note", role: "note"}, el("h3", {}, "What the verdicts stand on"), lines);
  }

  // What the map can show: a reference into the JSON, and the colours that mean the same on every page. --------------------

  const moved = new Map((audit.drift || []).map((d) => [`${d.attention}/${d.layer}/${d.head}`, d]));
  const drift_of = (one) => moved.get(`${one.layer.attention}/${one.layer.layer}/${one.head.head}`);
  const keys_of = (n) => d3.max(heads, (one) => one.head.keys[n]) || Number(n);
  const unit = about_one({low: "flatter than unit variance", high: "sharper"});
  const quantities = {
    "σ/σ_c": {
      label: "spread over the freezing point",
      bar: "σ/σ_c (a ratio): scores freeze beyond 1",
      of: (one, n) => ref(one.head, "sigma_over_critical", n),
      scale: () => about_one({low: "softmax stays open", high: "one key takes all"})
    },
    ...Object.fromEntries(sigmas.map((s) => [s.title, {
      label: sigmas.length > 1 ? s.title : "spread of the scores, σ",
      bar: `${sigmas.length > 1 ? s.title : "σ"}: 1 is unit variance`,
      of: (one) => s.of(one.head),
      scale: () => unit
    }])),
    ...(moved.size ? {
      growth: {
        label: "σ now over σ before",
        bar: "σ now ÷ σ before (a ratio)",
        of: (one) => (drift_of(one) ? ref(drift_of(one), "growth") : ref(one.head, "growth")),
        scale: () => about_one({low: "has shrunk", high: "has grown"})
      }
    } : {}),
    ratio: {
      label: "divisor for unit variance over √dₖ",
      bar: "divisor for unit variance ÷ √d_k (a ratio)",
      of: (one) => surest(one.head, "ratio"),
      scale: () => about_one({low: "√d_k divides too much", high: "too little"})
    },
    entropy: {
      label: "entropy of softmax",
      bar: "entropy of softmax (nats)",
      of: (one, n) => ref(one.head, "entropy", n),
      scale: (n) => from_to(0, Math.log(keys_of(n)), {low: "one key takes all", high: "all alike: ln n"})
    },
    p_max: {
      label: "largest weight",
      bar: "largest weight p_max, on average (a share)",
      of: (one, n) => ref(one.head, "p_max", n),
      scale: () => from_to(0, 1, {low: "all keys alike", high: "one key takes all"})
    },
    participation: {
      label: "participation, 1/Σp²",
      bar: "participation, 1/Σp² (keys)",
      of: (one, n) => ref(one.head, "participation", n),
      scale: (n) => from_to(1, keys_of(n), {log: true, low: "one", high: "all of them"})
    },
    effective_rank: {
      label: "effective rank",
      bar: "effective rank of W_qᵀW_k (directions)",
      of: (one) => ref(one.head, "effective_rank"),
      scale: () => from_to(1, d3.max(heads, (one) => one.head.d_k) || 2, {low: "one", high: "all d_k"})
    },
  };

  /// The numbers of the map in words, for those who cannot see it.
  function map_words(quantity, n) {
    const known = heads.map((one) => [one, quantity.of(one, n).value]).filter(([, v]) => isNumber(v)).sort((a, b) => a[1] - b[1]);
    const end = ([one, v]) => `${number(v)} (${long_name(one)})`;
    return `A map of ${counted(layers.length, "layer")} with ${counted(heads.length, "head")}: ${quantity.label}` +
        (known.length ? `, from ${end(known[0])} to ${end(known[known.length - 1])}.` : ".");
  }

  function map_part() {
    const shown_keys = [judged, ...contexts.filter((n) => n !== judged)];
    let showing = {quantity: quantities["σ/σ_c"], n: judged};
    const figure = chart({
      label: () => map_words(showing.quantity, showing.n),
      choices: {
        Show: Object.entries(quantities).map(([id, {label}]) => ({id, label})),
        ...(shown_keys.length > 1 ? {Keys: shown_keys.map((id) => ({id, label: grouped(id)}))} : {})
      },
      caption: "A cell is a head: its number, and its verdict in letters. Choose one, by mouse or by arrow keys and Enter, to see it below. " +
          "Colours mean the same numbers on every page.",
      draw(stage) {
        const n = stage.chosen.Keys || judged, quantity = quantities[stage.chosen.Show];
        showing = {quantity, n};
        const row = (layer, r) => ({
          name: row_name(layer),
          cells: heads.filter((one) => one.row === r).map((one) => {
            const value = quantity.of(one, n), {verdict} = one.head;
            return {
              it: one,
              column: one.column,
              value,
              word: verdict === "soft" ? "" : verdict_word(verdict),
              title: `${long_name(one)}: ${verdict_word(verdict)}, ${ground_of(one.head).name}`,
              lines: [[quantity.label, value]]
            };
          })
        });
        return draw_head_map(stage, {
          rows: layers.map(row),
          scale: quantity.scale(n),
          name: quantity.bar,
          pick: (one) => choose(one, true),
          chosen: (one) => one === chosen,
          dimmed: (one) => !passes(one)
        });
      },
    });
    watchers.push(() => figure.redraw());
    return el(
        "section", {id: `${prefix}map`, "aria-label": "The map"}, el("h2", {}, "Which heads?"),
        el("p", {class: "question"}, "How near is each head to freezing, and which look at nothing?"), figure, verdict_key(),
        ground_note(), (audit.notes || []).map((_, i) => el("p", {class: "note"}, "Note: ", ref(audit.notes, i))));
  }

  function verdict_key() {
    const counts = (v) => heads.filter((one) => one.head.verdict === v).length;
    return el("dl", {class: "verdict-key"}, verdicts.map((v) => {
      const letter = v === "soft" ? "" : kVerdicts[v].word[0].toUpperCase();
      return el("div", {}, el("dt", {}, letter ? el("b", {class: "letter", "aria-hidden": "true"}, letter) : null,
                              ` ${kVerdicts[v].word}: ${counts(v)}`), el("dd", {}, kVerdicts[v].means));
    }));
  }

  // What moved -------------------------------------------------------------------------------------------------------------

  function drift_part() {
    if (!moved.size) return null;
    // The ground is named of a verdict that does not stand on that of σ.
    const verdict_of = (d, which) => {
      const ground = d[`${which}_ground`], verdict = verdict_shown(ref(d, which));
      return ground === d.ground ? verdict : el("span", {}, verdict, ` (${kGrounds[ground].name})`);
    };
    const rows = audit.drift.slice(0, 24).map((d) => [
      `${kinds.size > 1 ? `${visible(d.attention)} ` : ""}${d.layer}.${d.head}`, ref(d, "sigma_before"), ref(d, "sigma_after"), ref(d, "growth"),
      verdict_of(d, "verdict_before"), verdict_of(d, "verdict_after")
    ]);
    const growths = audit.drift.map((d) => d.growth).filter(isNumber).sort(d3.ascending);
    const told = growths.length ?
        `σ has become ${number(d3.median(growths))} times what it was at the median, from ${number(growths[0])} to ${number(growths[growths.length - 1])}.` :
        "No head has a finite σ in both.";
    const grounds = [...new Set(audit.drift.map((d) => kGrounds[d.ground].name))].join(" or ");
    return el(
        "section", {id: `${prefix}drift`, "aria-label": "What moved"}, el("h2", {}, "What moved since the earlier checkpoint?"),
        el("p", {class: "claim"}, told), el("p", {class: "note"}, `σ is ${grounds}, before and now. The map above shows it for every head: choose “σ now over σ before”.`),
        table(
            audit.drift.length > rows.length ? `The ${rows.length} heads that moved most` : "Every head, those that moved most first",
            [{title: "head", left: true}, "σ before", "σ now", "growth", {title: "verdict before", left: true}, {title: "now", left: true}], rows));
  }

  // One head ---------------------------------------------------------------------------------------------------------------

  function facts_of(head) {
    const rows = [
      ["spread of the scores, σ (1 is unit variance)", "sigma"], ["divisor that gives unit variance", "unit_divisor"],
      ["that divisor ÷ √d_k", "ratio"], ["variance of q·k among the keys of a query", "variance"],
      ["the same over the distances of the context", "variance_in_context"], ["mean of q·k", "mean"],
      ["largest |score| that any input could give", "bound"], ["times that fits below float16's overflow (65,504)", "f16_headroom"],
      ["bfloat16 would round it by up to", "bf16_rounding"], ["standard deviation of q's components", "sigma_q"],
      ["standard deviation of k's components", "sigma_k"], ["length of the mean key", "key_mean_norm"],
      ["alignment of q and k (1: unrelated)", "alignment"], ["largest singular value of W_qᵀW_k", "largest_singular_value"],
      ["effective rank of W_qᵀW_k", "effective_rank"]
    ];
    return table("What the weights say", [{title: "", left: true, free: true}, "value"],
                 rows.map(([title, key]) => [title, put(digits(4), head, key)]));
  }

  /// The same head on other inputs than isotropic ones; what is not known by name is shown by its own.
  function on_inputs_of(head, ground, caption) {
    if (!head[ground]) return null;
    const values = head[ground];
    const titles = {
      sigma: "spread of the scores, σ",
      sigma_over_isotropic: "σ ÷ that of isotropic inputs",
      score_sigma: "σ as softmax sees it, after a soft-cap",
      unit_divisor: "divisor that gives unit variance",
      ratio: "that divisor ÷ √d_k",
      variance: "variance of q·k among the keys of a query",
      largest_score: "largest |score| seen",
      largest_raw: "largest score seen, before a soft-cap",
      clip_factor: "QK-clip would multiply scores by",
      keys: "keys that a row sees, geometric mean",
      entropy: "entropy (nats)",
      participation: "participation, 1/Σp²",
      p_max: "largest weight, on average",
      trace_j: "gradient that softmax lets through, tr J"
    };
    const others = Object.keys(values).filter((key) => !(key in titles) && (isNumber(values[key]) || values[key] === null));
    const keys = [...Object.keys(titles).filter((key) => key in values), ...others];
    return table(caption, [{title: "", left: true, free: true}, "value"],
                 keys.map((key) => [titles[key] || key, put(digits(4), values, key)]));
  }

  /// σ as each ground has it, side by side; the one that the verdict stands on is marked.
  function sigmas_of(head) {
    return el("dl", {class: "sigmas"}, sigmas.map((s) => {
      const stands = kGrounds[s.ground] === ground_of(head);
      return el("div", {class: stands ? "stands" : undefined}, el("dt", {}, s.title), el("dd", {}, shown(s.of(head), digits(3))));
    }));
  }

  function charts_of(head) {
    const points = (list, at) => list.map((_, i) => at(i)).filter((p) => isNumber(p.y.value) && p.y.value > 0 && p.x.value > 0);
    const curve = points(head.curve || [], (i) => ({x: ref(head.curve[i], "distance"), y: ref(head.curve[i], "variance")}));
    const spectrum = points(head.spectrum || [], (i) => ({x: {value: i + 1, path: ""}, y: ref(head.spectrum, i)}));
    const entropy = contexts.filter((n) => isNumber(head.entropy[n])).map((n) => ({x: ref(head.keys, n), y: ref(head.entropy, n)}));
    const titled = (title, figure) => el("div", {}, el("h3", {}, title), figure);
    return [
      spectrum.length ? titled("Spectrum of W_qᵀW_k", line_figure({
                                 label: "Singular values of the head, largest first.",
                                 x_name: "index",
                                 y_name: "singular value",
                                 points: spectrum,
                                 log_x: false
                               })) : null,
      curve.length ? titled("Variance over distance (rotary)", line_figure({
                              label: "Variance of q·k over the distance of query and key; the level line is its mean over all angles of the rotation.",
                              x_name: "distance (tokens)",
                              y_name: "variance of q·k",
                              points: curve,
                              reference: {value: head.variance, label: "all angles"}
                            })) : null,
      entropy.length > 1 ? titled("Entropy over keys", line_figure({
                                    label: "Predicted entropy of softmax over the number of keys.",
                                    x_name: "keys",
                                    y_name: "entropy (nats)",
                                    points: entropy,
                                    log_y: false
                                  })) : null
    ].filter(Boolean);
  }

  const head_part = el("section", {id: `${prefix}head`, "aria-label": "One head", "aria-live": "polite"});
  watchers.push(() => {
    if (!chosen) return;
    const {head} = chosen, fix = `${long_name(chosen)}: ${head.fix}`;
    const conditional = head.verdict !== "not_finite";  // that is so for any input
    const by_keys = contexts.filter((n) => head.keys[n] !== undefined);
    head_part.replaceChildren(...[
      el("h2", {}, `Head ${name_of(chosen)}: `, verdict_shown(ref(head, "verdict"))),
      conditional ? el("p", {class: "stands-on"}, badge_of(head)) : null,
      el("p", {class: "claim"}, ref(head, "words")), conditional ? sigmas_of(head) : null,
      el("div", {class: "fix"}, el("code", {}, fix), copy_button(fix)),
      el("div", {class: "trio"}, charts_of(head)),
      !conditional ? null : el(
          "div", {class: "pair"}, facts_of(head),
          el("div", {},
             by_keys.length ? table("What softmax makes of it, if scores are Gaussian",
                   [{title: "keys", left: true}, "σ/σ_c", "entropy", "1/Σp²", "p_max", {title: "verdict", left: true}],
                   by_keys.map((n) => [
                     put(exact, head.keys, n), put(digits(3), head.sigma_over_critical, n), put(digits(4), head.entropy, n),
                     put(digits(3), head.participation, n), put(digits(3), head.p_max, n), verdict_shown(ref(head.verdicts, n))
                   ])) : null,
             on_inputs_of(head, "measured", "What was measured"), on_inputs_of(head, "embeddings", "On the embeddings")))
    ].filter(Boolean));
  });

  // The table --------------------------------------------------------------------------------------------------------------

  const columns = [
    ["head", (one) => name_of(one)], ["verdict", (one) => ref(one.head, "verdict")],
    ...sigmas.map((s) => [sigmas.length > 1 ? s.short : "σ", (one) => s.of(one.head)]),
    ["unit divisor", (one) => surest(one.head, "unit_divisor")], ["÷ √d_k", (one) => surest(one.head, "ratio")],
    ["σ/σ_c", (one) => ref(one.head, "sigma_over_critical", judged)], ["entropy", (one) => ref(one.head, "entropy", judged)],
    ["p_max", (one) => ref(one.head, "p_max", judged)], ["largest possible |score|", (one) => ref(one.head, "bound")],
    ["effective rank", (one) => ref(one.head, "effective_rank")], ["stands on", (one) => ref(one.head, "ground")]
  ];

  function table_part() {
    let by = 2, down = true;
    const body = el("tbody"), note = el("p", {class: "note", "aria-live": "polite"});
    const titles = columns.map(([title], i) => {
      const button = el("button", {type: "button"}, title, el("span", {class: "order", "aria-hidden": "true"}));
      button.addEventListener("click", () => {
        [by, down] = [i, by === i ? !down : i > 1];
        fill();
      });
      return el("th", {scope: "col", class: i < 2 ? "left" : undefined}, button);
    });
    const key = (one) => {
      if (by === 0) return one.row * 1e6 + one.column;
      const {value} = columns[by][1](one);
      return value === null || value === undefined ? -Infinity : value;
    };
    function line(one) {
      const pick = el("button", {type: "button"}, name_of(one));
      pick.addEventListener("click", () => choose(one, true));
      const cells = columns.slice(1).map(([, of], i) => {
        const value = of(one);
        return el("td", {class: i === 0 ? "left" : undefined}, i === 0 ? verdict_shown(value) : value);
      });
      return el("tr", {class: one === chosen ? "chosen" : undefined}, el("th", {scope: "row", class: "left"}, pick), cells);
    }
    function fill() {
      titles.forEach((th, i) => {
        th.querySelector(".order").textContent = i === by ? (down ? " ▼" : " ▲") : "";
        if (i === by) th.setAttribute("aria-sort", down ? "descending" : "ascending");
        else th.removeAttribute("aria-sort");
      });
      const rows = heads.filter(passes).sort((a, b) => (down ? -1 : 1) * d3.ascending(key(a), key(b)));
      note.textContent = `${rows.length > kMostRows ? `The first ${kMostRows} of ` : ""}${counted(rows.length, "head")}.`;
      body.replaceChildren(...rows.slice(0, kMostRows).map(line));
    }
    const select = el("select", {}, ["all", ...verdicts].map((v) => el("option", {value: v}, v === "all" ? v : verdict_word(v))));
    const input = el("input", {type: "search", placeholder: "layer.head"});
    select.addEventListener("change", () => {
      filter.verdict = select.value;
      changed();
    });
    input.addEventListener("input", () => {
      filter.text = input.value.trim();
      changed();
    });
    watchers.push(fill);
    return el(
        "section", {id: `${prefix}heads`, "aria-label": "All heads"}, el("h2", {}, "All heads"),
        el("p", {class: "question"}, `At ${grouped(judged)} keys. A column's title sorts by it; a head's name shows that head above.`),
        el("div", {class: "controls"}, el("label", {}, "verdict", select), el("label", {}, "head", input)), note,
        scrolled("All heads, as a table", el("table", {}, el("thead", {}, el("tr", {}, titles)), body)));
  }

  /// Every head as a line of numbers, for a file.
  function numbers() {
    const own = ["sigma", "unit_divisor", "ratio", "bound", "effective_rank"], by_keys = ["sigma_over_critical", "entropy", "participation", "p_max"];
    return {
      columns: ["attention", "layer", "head", "verdict", "ground", ...own, ...by_keys.map((name) => `${name}_${judged}`)],
      rows: heads.map(({layer, head}) => [
        layer.attention, layer.layer, head.head, head.verdict, head.ground, ...own.map((name) => head[name]), ...by_keys.map((name) => head[name][judged])
      ])
    };
  }

  const parts = {
    map: map_part(),
    drift: drift_part(),
    head: head_part,
    table: table_part(),
    heads,
    judged,
    numbers,
    chosen: () => (chosen ? name_of(chosen) : ""),
    choose(name) {
      const one = heads.find((head) => name_of(head) === name);
      if (one && one !== chosen) choose(one);
    },
    watch: (watcher) => watchers.push(watcher)
  };
  const severity = Object.keys(kVerdicts);  // serious first
  const worse = (a, b) => severity.indexOf(a.head.verdict) - severity.indexOf(b.head.verdict) || surest(b.head, "sigma").value - surest(a.head, "sigma").value;
  choose([...heads].sort(worse)[0] || null);
  return parts;
}
