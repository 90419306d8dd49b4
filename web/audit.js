// The audit's page: a map of layers and heads, one head in detail, and all of them in a table.

const layers = results.layers;
const kinds = new Set(layers.map((l) => l.attention));
const letters = {soft: "", uniform: "_", sharp: "+", frozen: "#", exploding: "X", not_finite: "!", outliers: "o", sink: "s", unknown: "?"};
const heads = layers.flatMap((layer, row) => layer.heads.map((head, column) => ({layer, head, row, column})));
const contexts = results.contexts.map(String);
const judged = contexts.includes(String(results.judged_at)) ? String(results.judged_at) : contexts[contexts.length - 1];
const row_name = (layer) => (kinds.size > 1 ? `${visible(layer.attention)} ${layer.layer}` : `${layer.layer}`);
const name_of = (one) => `${row_name(one.layer)}.${one.head.head}`;

// What verdicts stand on, and σ as each ground has it: whatever the JSON holds stands side by side. ----------------

const grounds = {
  measured: {name: "measured", says: "on activations of this model"},
  embeddings: {
    name: "on the embeddings",
    says: "which would hold if every layer's inputs were like the normalised embeddings"
  },
  weights: {
    name: "from the weights alone",
    says: "which would hold if inputs were isotropic, and queries and keys independent; in a trained model they are not, " +
        "and σ is often several times as large"
  },
};
const ground_of = (head) => grounds[head.ground] || grounds.weights;
const stands = heads.filter((one) => one.head.verdict !== "not_finite");  // that holds for any input
const sigmas = [{title: "σ from the weights", short: "σ weights", of: (h) => ref(h, "sigma"), ground: "weights"},
                {title: "σ on the embeddings", short: "σ embeddings", of: (h) => ref(h, "embeddings", "sigma"),
                 ground: "embeddings"},
                {title: "σ measured", short: "σ measured", of: (h) => ref(h, "measured", "sigma"), ground: "measured"}]
                   .filter((s) => s.ground === "weights" || heads.some((one) => one.head[s.ground]));

/// What is known in several ways, in the surest of them: what the verdict stands on.
const surest = (head, key) => {
  const ground = ["measured", "embeddings"].find((id) => head[id]);
  return ground ? ref(head, ground, key) : ref(head, key);
};

const badge_of = (head) => el("span", {class: `ground ${head.ground || "weights"}`}, ground_of(head).name);

function ground_note() {
  const lines = Object.entries(grounds).map(([id, {name, says}]) => {
    const count = stands.filter((one) => ground_of(one.head) === grounds[id]).length;
    const text = ` ${counted(count, "verdict")}, ${says}.`;
    return count ? el("p", {}, el("span", {class: `ground ${id}`}, name), text) : null;
  });
  return el("div", {class: "ground-note", role: "note"}, el("h3", {}, "What the verdicts stand on"), lines);
}

/// What the map and the table can show: a reference into the JSON.
const quantities = {
  "σ/σ_c": {of: (h, n) => ref(h, "sigma_over_critical", n), help: "beyond 1 scores freeze"},
  ...Object.fromEntries(sigmas.map((s) => [
    sigmas.length > 1 ? s.title : "σ", {of: s.of, help: "spread of the scores; 1 is what 1/√d_k is for"}
  ])),
  "divisor ÷ √d_k": {of: (h) => surest(h, "ratio"), help: "1 where the square root is right"},
  "entropy": {of: (h, n) => ref(h, "entropy", n), help: "of softmax, in nats"},
  "p_max": {of: (h, n) => ref(h, "p_max", n), help: "the largest weight, on average"},
  "effective keys": {of: (h, n) => ref(h, "effective_keys", n), help: "1/Σp²"},
  "effective rank": {of: (h) => ref(h, "effective_rank"), help: "of W_qᵀW_k"},
};
const verdicts = [...new Set(heads.map((one) => one.head.verdict))].sort();

let chosen = null, filter = {verdict: "all", text: ""};
const passes = (one) => (filter.verdict === "all" || one.head.verdict === filter.verdict) && name_of(one).includes(filter.text);
const watchers = [];
const changed = () => watchers.forEach((watch) => watch());

// The map --------------------------------------------------------------------------------------------------------------------

function map_figure() {
  const most = d3.max(layers, (l) => l.heads.length);
  return chart({
    label: `A map of ${counted(layers.length, "layer")} and up to ${counted(most, "head")}.`,
    choices: {show: Object.keys(quantities).map((id) => ({id, label: id})), keys: [judged, ...contexts.filter((n) => n !== judged)].map((n) => ({id: n, label: `${n} keys`}))},
    caption: "A cell is a head; choose one to see it below. Letters: _ uniform, + sharp, # frozen, X exploding, ! not finite.",
    draw({svg, width, chosen: choice, spot}) {
      const left = 16 + 7.5 * d3.max(layers, (l) => row_name(l).length), top = 22;
      const cell = Math.max(3, Math.min(26, (width - left - 4) / most)), tall = Math.max(10, Math.min(22, cell));
      const {of, help} = quantities[choice.show];
      const values = heads.map((one) => of(one.head, choice.keys).value).filter((v) => isNumber(v) && v > 0);
      const domain = values.length ? d3.extent(values.map(Math.log)) : [0, 1];
      const colour = d3.scaleSequential(d3.interpolateViridis).domain(domain[0] === domain[1] ? [domain[0] - 1, domain[1] + 1] : domain);
      const g = svg.append("g").attr("transform", `translate(${left},${top})`);
      layers.forEach((layer, row) => g.append("text").attr("class", "quiet").attr("x", -8).attr("y", row * tall + tall / 2 + 4).attr("text-anchor", "end").text(row_name(layer)));
      for (let h = 0; h < most; h += Math.max(1, Math.ceil(24 / cell)))
        g.append("text").attr("class", "quiet").attr("x", (h + 0.5) * cell).attr("y", -7).attr("text-anchor", "middle").text(h);
      for (const one of heads) {
        const value = of(one.head, choice.keys);
        const rect = g.append("rect").datum(one).attr("class", "cell").attr("x", one.column * cell).attr("y", one.row * tall).attr("width", cell - 1).attr("height", tall - 1)
                         .attr("fill", isNumber(value.value) && value.value > 0 ? colour(Math.log(value.value)) : "#c0c")
                         .classed("chosen", one === chosen).classed("dimmed", !passes(one)).on("click", () => choose(one));
        mark(rect, value);
        if (cell >= 9 && letters[one.head.verdict])
          g.append("text").attr("class", "letter").attr("x", one.column * cell + (cell - 1) / 2).attr("y", one.row * tall + tall / 2 + 3).text(letters[one.head.verdict]);
        spot(left + (one.column + 0.5) * cell, top + (one.row + 0.5) * tall,
             `head ${name_of(one)}: ${one.head.verdict}, ${ground_of(one.head).name}`, [[choice.show, value], [help, ""]]);
      }
      if (values.length)
        g.append("text").attr("class", "quiet").attr("y", layers.length * tall + 18).text(`dark ${number(d3.min(values))} … bright ${number(d3.max(values))}`);
      return top + layers.length * tall + 26;
    },
  });
}

// One head --------------------------------------------------------------------------------------------------------------------

/// Points of {x, y} references, joined; both axes logarithmic where the numbers allow it.
function line_figure(label, x_name, y_name, points, {log_x = true, log_y = true, reference = null} = {}) {
  return chart({
    label,
    draw({svg, width, spot}) {
      const margin = {left: 44, right: 12, top: 28, bottom: 42}, w = width - margin.left - margin.right, h = 170;
      const xs = points.map((p) => p.x.value), ys = points.map((p) => p.y.value).concat(reference === null ? [] : [reference]);
      const scale = (values, log, range) => {
        const [a, b] = extent(values);
        const usable = log && a > 0;
        const s = (usable ? d3.scaleLog() : d3.scaleLinear()).range(range);
        return a === b ? s.domain(usable ? [a / 2, b * 2] : [a - 1, b + 1]) : s.domain([usable ? a : Math.min(0, a), b]);
      };
      const x = scale(xs, log_x, [0, w]), y = scale(ys, log_y, [h, 0]);
      const g = svg.append("g").attr("transform", `translate(${margin.left},${margin.top})`);
      y_axis(g, y, w, y_name, 5);
      x_axis(g, x, h, x_name, {values: ticks_of(x, 5), width: w});
      if (reference !== null) g.append("line").attr("class", "reference").attr("x2", w).attr("y1", y(reference)).attr("y2", y(reference));
      g.append("path").attr("fill", "none").attr("stroke", "var(--rule-sqrt_dk)").attr("stroke-width", 2)
          .attr("d", d3.line().x((p) => x(p.x.value)).y((p) => y(p.y.value))(points));
      for (const p of points) {
        mark(g.append("circle").attr("r", 3).attr("fill", "var(--rule-sqrt_dk)").attr("cx", x(p.x.value)).attr("cy", y(p.y.value)), p.y);
        spot(margin.left + x(p.x.value), margin.top + y(p.y.value), `${x_name} ${number(p.x.value)}`, [[y_name, p.y]]);
      }
      return margin.top + h + margin.bottom;
    },
  });
}

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

function facts_of(head) {
  const rows = [["σ, after the scale", "sigma"], ["unit divisor", "unit_divisor"], ["its ratio to √d_k", "ratio"], ["variance of q·k within a row", "variance"],
                ["… over the context's distances", "variance_in_context"], ["mean of q·k", "mean"], ["no |score| exceeds", "bound"], ["65504 over that (f16)", "f16_headroom"],
                ["bf16 rounds such a score by", "bf16_rounding"], ["spread of q's components", "sigma_q"], ["of k's", "sigma_k"], ["length of the mean key", "key_mean_norm"],
                ["alignment of q and k", "alignment"], ["largest singular value of W_qᵀW_k", "largest_singular_value"], ["effective rank", "effective_rank"]];
  return table("What the weights say", [{title: "", left: true}, "value"],
               rows.map(([title, key]) => [title, put(digits(4), head, key)]));
}

/// The same head on other inputs than isotropic ones; what is not known by name is shown by its own.
function on_inputs_of(head, ground, caption) {
  if (!head[ground]) return null;
  const values = head[ground];
  const titles = {
    sigma: "σ, after the scale",
    sigma_over_isotropic: "… over that of isotropic inputs",
    unit_divisor: "unit divisor",
    ratio: "its ratio to √d_k",
    variance: "variance of q·k within a row",
    largest_score: "largest |score| seen",
    largest_raw: "largest score seen",
    clip_factor: "QK-clip's γ",
    entropy: "entropy",
    p_max: "largest weight, on average",
    trace_jacobian: "tr J"
  };
  const others = Object.keys(values).filter((key) => !(key in titles) && (isNumber(values[key]) || values[key] === null));
  const keys = [...Object.keys(titles).filter((key) => key in values), ...others];
  return table(caption, [{title: "", left: true}, "value"],
               keys.map((key) => [titles[key] || key, put(digits(4), values, key)]));
}

/// σ as each ground has it, side by side; the one that the verdict stands on is marked.
function sigmas_of(head) {
  return el("dl", {class: "sigmas"}, sigmas.map((s) => {
    const stands = grounds[s.ground] === ground_of(head);
    return el("div", {class: stands ? "stands" : undefined}, el("dt", {}, s.title), el("dd", {}, shown(s.of(head), digits(3))));
  }));
}

function head_section() {
  const node = el("section", {id: "head", "aria-label": "One head", "aria-live": "polite"});
  watchers.push(() => {
    if (!chosen) return;
    const {head, layer} = chosen;
    const fix = `layer ${row_name(layer)}, head ${head.head}: ${head.fix}`;
    const curve = (head.curve || []).map((_, i) => ({x: ref(head.curve[i], "distance"), y: ref(head.curve[i], "variance")})).filter((p) => p.x.value > 0 && isNumber(p.y.value));
    const spectrum = (head.spectrum || []).map((_, i) => ({x: {value: i + 1, path: ""}, y: ref(head.spectrum, i)})).filter((p) => p.y.value > 0);
    const charts = [];
    if (spectrum.length) charts.push(el("div", {}, el("h3", {}, "Spectrum of W_qᵀW_k"), line_figure("Singular values.", "index", "singular value", spectrum, {log_x: false})));
    if (curve.length) charts.push(el("div", {}, el("h3", {}, "Variance over distance (rotary)"), line_figure("Variance of q·k over distance.", "distance", "variance of q·k", curve, {reference: head.variance})));
    if (contexts.length > 1 && Object.keys(head.entropy).length)
      charts.push(el("div", {}, el("h3", {}, "Entropy over keys"), line_figure("Predicted entropy.", "keys", "entropy", contexts.map((n) => ({x: ref(head.keys, n), y: ref(head.entropy, n)})), {log_y: false})));
    const conditional = head.verdict !== "not_finite";  // that is so for any input
    node.replaceChildren(...[
        el("h2", {}, `Head ${name_of(chosen)}: `, ref(head, "verdict")),
        conditional ? el("p", {class: "stands-on"}, badge_of(head)) : null,
        el("p", {class: "question"}, ref(head, "words")), conditional ? sigmas_of(head) : null,
        el("div", {class: "fix"}, el("code", {}, fix), copy_button(fix)),
        el("div", {class: "pair"}, facts_of(head), el("div", {},
           table("What softmax makes of it, if scores are Gaussian", [{title: "keys", left: true}, "σ/σ_c", "entropy", "effective keys", "p_max", {title: "verdict", left: true}],
                 contexts.filter((n) => head.keys[n] !== undefined).map((n) => [put(exact, head.keys, n), put(digits(3), head.sigma_over_critical, n), put(digits(4), head.entropy, n),
                                        put(digits(3), head.effective_keys, n), put(digits(3), head.p_max, n), ref(head.verdicts, n)])),
           on_inputs_of(head, "measured", "What was measured"), on_inputs_of(head, "embeddings", "On the embeddings"))),
        el("div", {class: "trio"}, charts)].filter(Boolean));
  });
  return node;
}

// The table --------------------------------------------------------------------------------------------------------------------

const columns = [["head", (one) => name_of(one)], ["verdict", (one) => ref(one.head, "verdict")],
                 ...sigmas.map((s) => [sigmas.length > 1 ? s.short : "σ", (one) => s.of(one.head)]),
                 ["unit divisor", (one) => surest(one.head, "unit_divisor")], ["÷ √d_k", (one) => surest(one.head, "ratio")], ["σ/σ_c", (one) => ref(one.head, "sigma_over_critical", judged)],
                 ["entropy", (one) => ref(one.head, "entropy", judged)], ["p_max", (one) => ref(one.head, "p_max", judged)], ["bound", (one) => ref(one.head, "bound")],
                 ["effective rank", (one) => ref(one.head, "effective_rank")], ["ground", (one) => ref(one.head, "ground")]];
const kMostRows = 500;

function table_section() {
  let by = 2, down = true;
  const body = el("tbody"), note = el("p", {class: "note"});
  const buttons = columns.map(([title], i) => {
    const button = el("button", {type: "button"}, title);
    button.addEventListener("click", () => {
      [by, down] = [i, by === i ? !down : i > 1];
      fill();
    });
    return button;
  });
  function fill() {
    buttons.forEach((b, i) => (i === by ? b.setAttribute("aria-sort", down ? "descending" : "ascending") : b.removeAttribute("aria-sort")));
    const key = (one) => {
      if (by === 0) return one.row * 1e6 + one.column;
      const value = columns[by][1](one).value;
      return value === null || value === undefined ? -Infinity : value;
    };
    const rows = heads.filter(passes).sort((a, b) => (down ? -1 : 1) * d3.ascending(key(a), key(b)));
    note.textContent = rows.length > kMostRows ? `The first ${kMostRows} of ${counted(rows.length, "head")}.` : `${counted(rows.length, "head")}.`;
    body.replaceChildren(...rows.slice(0, kMostRows).map((one) => {
      const pick = el("button", {type: "button"}, name_of(one));
      pick.addEventListener("click", () => choose(one));
      return el("tr", {class: one === chosen ? "chosen" : undefined}, el("td", {class: "left"}, pick), columns.slice(1).map(([, of], i) => el("td", {class: i === 0 ? "left" : undefined}, of(one))));
    }));
  }
  const select = el("select", {}, ["all", ...verdicts].map((v) => el("option", {value: v}, v)));
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
  return el("section", {id: "heads", "aria-label": "All heads"}, el("h2", {}, "All heads"), el("p", {class: "question"}, `At ${judged} keys. Titles sort; a head's name shows it above.`),
            el("div", {class: "controls"}, el("label", {}, "verdict", select), el("label", {}, "head", input)), note,
            el("div", {class: "scroll", tabindex: 0, role: "region", "aria-label": "All heads"}, el("table", {}, el("thead", {}, el("tr", {}, buttons.map((b, i) => el("th", {scope: "col", class: i < 2 ? "left" : undefined}, b)))), body)));
}

// All of it --------------------------------------------------------------------------------------------------------------------

function choose(one) {
  chosen = one;
  changed();
  document.getElementById("head").scrollIntoView({block: "nearest"});
}

add(document.getElementById("model"), ref(results, "model"));
add(document.getElementById("made"),
    el("span", {}, "family ", ref(results, "family"), " · scale ", ref(results, "scale_rule"), ` · ${counted(layers.length, "attention layer")} · ${counted(heads.length, "head")} · verdicts at ${judged} keys`));
const counts = verdicts.map((v) => `${heads.filter((one) => one.head.verdict === v).length} ${v}`).join(", ");
const map = map_figure();
watchers.push(() => d3.select(map).selectAll(".cell").classed("chosen", (one) => one === chosen).classed("dimmed", (one) => !passes(one)));
document.getElementById("audit").append(
    el("section", {id: "map", "aria-label": "The map"}, el("h2", {}, "The map"), el("p", {class: "question"}, `Which heads are too sharp, and which look at nothing? ${counts}.`), ground_note(), map,
       (results.notes || []).map((_, i) => el("p", {class: "note"}, "Note: ", ref(results.notes, i)))),
    head_section(), table_section());
document.getElementById("closing").append(el("p", {}, "Charts by D3 (BSD-3-Clause, Mike Bostock). Nothing was loaded from anywhere to show this page."));
const severity = ["unknown", "soft", "outliers", "sink", "sharp", "uniform", "frozen", "exploding", "not_finite"];
chosen = heads.reduce((worst, one) => (!worst || severity.indexOf(one.head.verdict) > severity.indexOf(worst.head.verdict) ||
                                       (one.head.verdict === worst.head.verdict && one.head.sigma > worst.head.sigma) ? one : worst), null);
changed();
