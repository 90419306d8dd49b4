// The page of a watch: which head, since when, and what was said about it. values[statistic][step][head]; heads are those of all
// layers in a row.

const {steps, heads, alarms, values} = results;
const numbered = heads.map((h, index) => ({...h, index}));
const layers = unique(heads.map((h) => h.layer)).map((name) => ({name, heads: numbered.filter((h) => h.layer === name)}));

// What there is to see ------------------------------------------------------------------------------------------------------

const share = (low, high) => () => from_to(0, 1, {low, high});
const unit_size = () => about_one({low: "smaller than unit variance", high: "larger"});
const most_keys = () => d3.max(values.keys ? values.keys.flat().filter(isNumber) : []) || 2;
/// word: what it is called where it is not explained; says: what it is; bar: its name and unit at the colour bar; scale: colours that mean the same on every page, where the
/// quantity has such; else they run over all steps of this one.
const statistics = {
  sigma_ratio: {
    word: "spread over the freezing point (σ/σ_c)",
    says: "σ/σ_c: spread of the scores over √(2 ln n). Above 1 rows are sharp, which may be learned; the gradient let through says whether they still learn.",
    bar: "σ/σ_c (a ratio): rows freeze beyond 1",
    scale: () => about_one({low: "softmax stays open", high: "one key takes all"})
  },
  raw_max: {word: "largest raw score (c·q·k)", says: "Largest c·q·k, before cap and bias. This is what explodes.", bar: "largest c·q·k"},
  raw_sigma: {word: "spread of the raw scores", says: "Standard deviation of c·q·k within a row.", bar: "σ of c·q·k within a row", scale: unit_size},
  score_max: {word: "largest score", says: "Largest score as softmax sees it.", bar: "largest score"},
  score_sigma: {word: "spread of the scores (σ)", says: "Standard deviation of the scores within a row, as softmax sees them.", bar: "σ of the scores within a row", scale: unit_size},
  entropy: {
    word: "entropy",
    says: "Mean entropy of the rows, in nats. Near 0 one key takes all.",
    bar: "entropy (nats)",
    scale: () => from_to(0, Math.log(Math.max(2, most_keys())), {low: "one key takes all", high: "all alike: ln n"})
  },
  effective_keys: {
    word: "effective keys",
    says: "How many keys a row looks at: e to the entropy.",
    bar: "effective keys (keys)",
    scale: () => from_to(1, Math.max(2, most_keys()), {log: true, low: "one", high: "all of them"})
  },
  mean_p_max: {word: "largest weight of a row (mean)", says: "Mean of the largest probability of a row.", bar: "largest weight of a row, mean (a share)", scale: share("all keys alike", "one key takes all")},
  median_p_max: {word: "largest weight of a row (median)", says: "Median of the largest probability of a row.", bar: "largest weight of a row, median (a share)", scale: share("all keys alike", "one key takes all")},
  share_p_max_over_99pct: {word: "rows that give one key 0.99", says: "Share of the rows that give one key 0.99 or more.", bar: "rows that give one key 0.99 (a share)", scale: share("none", "all rows")},
  trace_j: {word: "gradient let through (tr J)", says: "1 − Σp²: how much gradient softmax lets through.", bar: "tr J, gradient let through (a share)", scale: share("softmax is shut", "open")},
  sink_mass: {word: "mass of the sink", says: "What the sink takes of a row's probability.", bar: "mass of the sink (a share)", scale: share("none", "all of it")},
  mean_lse: {word: "mean logsumexp", says: "Mean logsumexp of the rows.", bar: "mean logsumexp (nats)"},
  keys: {word: "keys that a row sees", says: "Keys that a row sees, geometric mean.", bar: "keys that a row sees"},
  sigma_q: {word: "spread of q's components", says: "Spread of the components of q.", bar: "σ of q's components", scale: unit_size},
  sigma_k: {word: "spread of k's components", says: "Spread of the components of k around their mean.", bar: "σ of k's components", scale: unit_size},
  key_mean_norm: {word: "length of the mean key", says: "Length of the mean key.", bar: "length of the mean key"},
  alignment: {word: "alignment of q and k", says: "1 where q and k have nothing to do with each other.", bar: "alignment of q and k (a ratio)", scale: () => about_one({low: "turned away", high: "aligned"})},
  scale: {word: "scale c", says: "c, as the model applied it.", bar: "scale c"},
  rows_masked: {word: "queries that see no key", says: "Queries that see no key.", bar: "queries that see no key"},
  rows_not_finite: {word: "rows with NaN or infinity", says: "Rows with NaN or infinity.", bar: "rows with NaN or infinity"},
  d_scores: {word: "gradient at the scores (‖dS‖²)", says: "Squared length of the gradient that arrives at the scores.", bar: "‖dS‖²"},
  d_log_scale: {word: "gradient of ln c", says: "Gradient of ln c.", bar: "gradient of ln c"},
  d_q: {word: "gradient of q (‖dQ‖²)", says: "Squared length of the gradient of q.", bar: "‖dQ‖²"},
  d_k: {word: "gradient of k (‖dK‖²)", says: "Squared length of the gradient of k.", bar: "‖dK‖²"},
  d_v: {word: "gradient of v (‖dV‖²)", says: "Squared length of the gradient of v.", bar: "‖dV‖²"},
};
const small_is_worse = new Set(["entropy", "effective_keys", "trace_j"]);
const names = Object.keys(statistics).filter((name) => name in values);
const at_of = (name, step, head) => ref(values[name][step], head);
const everything = (name) => values[name].flat().filter(isNumber);
const worst_of = (name) => (small_is_worse.has(name) ? d3.min : d3.max);

/// What all names of layers have in common at both ends says nothing.
const short_names = (() => {
  const parts = layers.map((l) => l.name.split("."));
  const least = d3.min(parts, (p) => p.length) || 0;
  const same = (of) => parts.every((p) => of(p) === of(parts[0]));
  let first = 0, last = 0;
  while (parts.length > 1 && first < least - 1 && same((p) => p[first])) ++first;
  while (parts.length > 1 && last < least - 1 - first && same((p) => p[p.length - 1 - last])) ++last;
  return new Map(layers.map((l, i) => [l.name, parts[i].slice(first, parts[i].length - last).join(".")]));
})();
/// "layer 3" where a module is called "3", as in a Sequential; other names say themselves what they are.
const layer_word = (name) => (/^\d+$/.test(name) ? "layer " : "");
const head_name = (index) => `${layer_word(heads[index].layer)}${heads[index].layer}, head ${heads[index].head}`;

const word_of = (name) => (Object.hasOwn(statistics, name) ? statistics[name].word : name);
/// A reference to the name of a statistic, in words.
function word_shown(reference) {
  const node = shown(reference);
  node.replaceChildren(...el("span", {}, word_of(reference.value)).childNodes);
  return node;
}

const chosen = {name: names[0], step: Math.max(0, steps.length - 1), head: 0};
const watchers = [];
const changed = () => watchers.forEach((watch) => watch());
function choose(what) {
  Object.assign(chosen, what);
  changed();
}
/// A figure that is drawn again when something else is chosen.
function following(figure) {
  watchers.push(() => figure.redraw());
  return figure;
}

/// Logarithmic where numbers of very different size would hide each other.
function spread_of(name) {
  const [low, high] = extent(everything(name));
  if (low === undefined) return {low: 0, high: 1, log: false};
  const log = low > 0 && high / low > 50;
  if (low === high) return {low: low - Math.abs(low) / 2 - 1e-9, high: high + Math.abs(high) / 2 + 1e-9, log: false};
  return {low, high, log};
}
function axis_of(name, range) {
  const {low, high, log} = spread_of(name);
  return (log ? d3.scaleLog() : d3.scaleLinear()).domain([low, high]).range(range);
}
function colours_of(name) {
  if (statistics[name].scale) return statistics[name].scale();
  const {low, high, log} = spread_of(name);
  return from_to(low, high, {log, low: "least of all steps", high: "most"});
}

// What to show ------------------------------------------------------------------------------------------------------------------

function bar() {
  const select = el("select", {id: "statistic"}, names.map((name) => Object.assign(el("option", {value: name}), {textContent: `${word_of(name)}: ${name}`})));
  const slider = el("input", {id: "step", type: "range", min: 0, max: Math.max(0, steps.length - 1), step: 1});
  const shown_step = el("output"), meaning = el("p", {class: "note meaning"});
  select.addEventListener("input", () => choose({name: select.value}));
  slider.addEventListener("input", () => choose({step: Number(slider.value)}));
  watchers.push(() => {
    select.value = chosen.name;
    slider.value = chosen.step;
    slider.setAttribute("aria-valuetext", `step ${steps[chosen.step]}`);
    shown_step.textContent = steps[chosen.step];
    meaning.replaceChildren(...el("p", {}, statistics[chosen.name].says).childNodes);
  });
  const controls = [el("label", {}, "Statistic", select), el("label", {}, "Step", slider, shown_step), meaning];
  return el("div", {class: "bar"}, el("div", {class: "controls"}, controls));
}

// The map -----------------------------------------------------------------------------------------------------------------------

/// An alarm without a head is of the whole layer.
const is_of = (alarm, layer, head) => alarm.layer === layer && (alarm.head === null || alarm.head === head);
const whose = (alarm) => [alarm.layer ? [layer_word(alarm.layer), ref(alarm, "layer")] : "the model", ...(alarm.head === null ? [] : [", head ", put(exact, alarm, "head")])];
const head_of = (alarm) => heads.findIndex((h) => is_of(alarm, h.layer, h.head));
/// Heads that an alarm was raised for, up to the step that is shown.
const alarmed = () => {
  const rung = alarms.filter((a) => a.step <= steps[chosen.step]);
  return new Set(numbered.filter((h) => rung.some((a) => is_of(a, h.layer, h.head))).map((h) => h.index));
};

function map_words() {
  const known = heads.map((_, i) => [i, values[chosen.name][chosen.step][i]]).filter(([, v]) => isNumber(v)).sort((a, b) => a[1] - b[1]);
  const end = ([i, v]) => `${number(v)} (${head_name(i)})`;
  return `${word_of(chosen.name)} of every head at step ${steps[chosen.step]}` +
      (known.length ? `, from ${end(known[0])} to ${end(known[known.length - 1])}.` : ".");
}

function map_figure() {
  return following(chart({
    label: map_words,
    caption: () => `At step ${steps[chosen.step]}. ${alarms.length ? "▲ marks heads that raised an alarm by then. " : ""}` +
        "Choose a cell, by mouse or by arrow keys and Enter, to follow that head.",
    draw(stage) {
      const {name, step} = chosen, rung = alarmed();
      return draw_head_map(stage, {
        rows: layers.map((layer) => ({
                           name: short_names.get(layer.name),
                           full: layer.name,
                           cells: layer.heads.map(({index, head}) => ({
                                                    it: index,
                                                    column: head,
                                                    value: at_of(name, step, index),
                                                    word: rung.has(index) ? "▲" : "",
                                                    title: `${head_name(index)}${rung.has(index) ? ", which raised an alarm" : ""}`,
                                                    lines: [[word_of(name), at_of(name, step, index)]]
                                                  }))
                         })),
        scale: colours_of(name),
        name: statistics[name].bar,
        pick: (head) => choose({head}),
        chosen: (head) => head === chosen.head
      });
    },
  }));
}

// Over time ---------------------------------------------------------------------------------------------------------------------

/// From the first layer's colour to the last one's; both are set for light and for dark.
const layer_colour = (i) => `color-mix(in oklab, var(--last-layer) ${100 * i / Math.max(1, layers.length - 1)}%, var(--first-layer))`;
const kMostLabels = 12;

function time_figure() {
  const worst_series = (name) => layers.map((layer) => steps.map((_, i) => worst_of(name)(layer.heads, (h) => values[name][i][h.index])));
  const limits = (name) => unique(alarms.filter((a) => a.what === name).map((a) => a.threshold)).filter(isNumber);
  return following(chart({
    label: () => {
      const one = steps.map((_, i) => values[chosen.name][i][chosen.head]).filter(isNumber);
      return `${word_of(chosen.name)} over ${counted(steps.length, "step")}: of ${head_name(chosen.head)} it goes from ${number(one[0])} to ${number(one[one.length - 1])}.`;
    },
    caption: () => [`Thin: the ${small_is_worse.has(chosen.name) ? "smallest" : "largest"} of each layer's heads. `,
                    `Bold: ${head_name(chosen.head)}. `, alarms.length ? "Triangles: alarms. " : "",
                    limits(chosen.name).length ? "Dotted: their threshold." : ""],
    draw({svg, width, spot}) {
      const {name} = chosen, series = worst_series(name), thresholds = limits(name);
      const followed = steps.map((_, i) => at_of(name, i, chosen.head));
      const labels = layers.map((l) => short_names.get(l.name)), named = layers.length <= kMostLabels;
      const longest = named ? Math.min(18, d3.max(labels, (l) => l.length)) : 0;
      const top = named ? 30 : 74;
      const margin = {left: 54, right: named ? 24 + 7 * longest : 14, bottom: 60}, w = width - margin.left - margin.right, h = 240;
      const x = d3.scaleLinear().domain(steps.length > 1 ? d3.extent(steps) : [steps[0] - 1, steps[0] + 1]).range([0, w]);
      const y = axis_of(name, [h, 0]);
      if (!y.base) y.nice();
      const g = svg.append("g").attr("transform", `translate(${margin.left},${top})`);
      if (!named) {
        const ticks = d3.ticks(0, layers.length - 1, 6).filter(Number.isInteger);
        const scale = {colour: layer_colour, at: (i) => i / (layers.length - 1), inverse: (p) => p * (layers.length - 1), ticks};
        colour_bar(svg, scale, {x: margin.left, width: Math.min(w, 300), name: "layer, in the order of the model"});
      }
      y_axis(g, y, w, "", 5);
      g.append("text").attr("class", "axis-name").attr("x", -42).attr("y", -12).text(statistics[name].bar);
      x_axis(g, x, h + 14, "step", {values: x.ticks(Math.min(8, width / 70)).filter(Number.isInteger), width: w});
      const inside = (t) => t >= y.domain()[0] && t <= y.domain()[1];
      for (const t of thresholds.filter(inside))
        g.append("line").attr("class", "reference").attr("x2", w).attr("y1", y(t)).attr("y2", y(t));
      g.append("line").attr("class", "at").attr("x1", x(steps[chosen.step])).attr("x2", x(steps[chosen.step])).attr("y2", h);
      const path = (points) => d3.line().defined(isNumber).x((_, i) => x(steps[i])).y((v) => y(v))(points);
      const at_end = (points) => points.filter(isNumber).slice(-1)[0];
      const places = apart(series.map((points) => (isNumber(at_end(points)) ? y(at_end(points)) : h)), 13, 0, h);
      series.forEach((points, i) => {
        const stroke = layer_colour(i);
        g.append("path").attr("class", "layer").attr("d", path(points)).attr("fill", "none").attr("stroke", stroke)
            .attr("stroke-width", 1.6).append("title").text(layers[i].name);
        if (steps.length === 1 && isNumber(points[0]))
          g.append("circle").attr("cx", x(steps[0])).attr("cy", y(points[0])).attr("r", 3).attr("fill", stroke);
        if (!named || !isNumber(at_end(points))) return;
        g.append("path").attr("class", "leader").attr("stroke", stroke).attr("d", `M${w},${y(at_end(points))}L${w + 12},${places[i]}h4`);
        const text = labels[i].length > longest ? `…${labels[i].slice(1 - longest)}` : labels[i];
        g.append("text").attr("class", "quiet").attr("x", w + 19).attr("y", places[i] + 4).text(text).append("title").text(layers[i].name);
      });
      g.append("path").attr("class", "one").attr("d", path(followed.map((v) => v.value)));
      for (const step of unique(alarms.map((a) => a.step)).filter((s) => s >= x.domain()[0] && s <= x.domain()[1]))
        g.append("path").attr("class", "bell").attr("d", d3.symbol().type(d3.symbolTriangle).size(44)())
            .attr("transform", `translate(${x(step)},${h + 7})`)
            .append("title").text(alarms.filter((a) => a.step === step).map((a) => a.text).join("\n"));
      steps.forEach((step, i) => {
        const value = followed[i];
        const rows = layers.slice(0, 8).map((l, k) => [short_names.get(l.name), number(series[k][i])]);
        const first = [`head ${heads[chosen.head].head}`, value];
        if (isNumber(value.value))
          spot(margin.left + x(step), top + y(value.value), `step ${step}`, [first, ...rows], {pick: () => choose({step: i})});
      });
      return top + h + margin.bottom;
    },
  }));
}

/// Every head a line of pixels, every step a column.
function strip() {
  if (steps.length < 2) return null;
  const tall = Math.max(2, Math.min(14, Math.round(420 / heads.length)));
  const canvas = el("canvas", {width: steps.length, height: heads.length, style: `height: ${tall * heads.length}px`, role: "img"});
  const paint = canvas.getContext("2d");
  const said = el("p", {class: "note"}, "A row for each head, a column for each step, in the colours of the map; point at one, or choose it.");
  const place = (event) => {
    const box = canvas.getBoundingClientRect();
    const inside = (part, count) => Math.max(0, Math.min(count - 1, Math.floor(part * count)));
    return {step: inside((event.clientX - box.left) / box.width, steps.length),
            head: inside((event.clientY - box.top) / box.height, heads.length)};
  };
  watchers.push(() => {
    const {name} = chosen, {colour} = colours_of(name), ends = extent(everything(name));
    heads.forEach((_, row) => steps.forEach((_, column) => {
      const v = values[name][column][row];
      paint.fillStyle = isNumber(v) ? colour(v) : "#888";
      paint.fillRect(column, row, 1, 1);
    }));
    canvas.setAttribute("aria-label", `${word_of(name)} of every head over the steps, from ${number(ends[0])} to ${number(ends[1])}.`);
  });
  canvas.addEventListener("pointermove", (event) => {
    const {step, head} = place(event);
    said.replaceChildren(...el("span", {}, `${head_name(head)}, step ${steps[step]}: `, at_of(chosen.name, step, head)).childNodes);
  });
  canvas.addEventListener("click", (event) => choose(place(event)));
  const every = Math.max(1, Math.ceil(15 * layers.length / (tall * heads.length)));
  const labels = layers.filter((l, i) => i % every === 0)
                     .map((l) => el("span", {style: `top: ${tall * l.heads[0].index}px`}, short_names.get(l.name)));
  const ticks = d3.range(0, 5).map((i) => steps[Math.round(i * (steps.length - 1) / 4)]);
  const longest = d3.max(layers, (l) => short_names.get(l.name).length);
  return el("div", {class: "strip"}, el("div", {class: "names", style: `width: min(${longest}ch, 30vw)`, "aria-hidden": "true"}, labels), canvas,
            el("div", {class: "steps"}, unique(ticks).map((t, i) => el("span", {}, i === 0 ? `step ${t}` : String(t)))), said);
}

// One head ----------------------------------------------------------------------------------------------------------------------

function head_table() {
  const rows = names.map((name) => {
    const known = steps.map((_, i) => at_of(name, i, chosen.head)).filter((v) => isNumber(v.value));
    known.sort((a, b) => a.value - b.value);
    const code = Object.assign(el("code"), {textContent: name});  // as it is: the gradient of k is no d_k
    const says = el("span", {}, statistics[name].says, " ", code);
    return [word_of(name), at_of(name, chosen.step, chosen.head), known[0] || "–", known[known.length - 1] || "–", says];
  });
  const title = `${head_name(chosen.head)}, at step ${steps[chosen.step]}`;
  const columns = [{title: "statistic", left: true}, "now", "smallest", "largest", {title: "", left: true, free: true}];
  return table(title, columns, rows);
}

function alarm_list() {
  if (!alarms.length) return el("p", {class: "note"}, "None.");
  const most = 200, nearest = (step) => d3.scan(steps, (a, b) => Math.abs(a - step) - Math.abs(b - step));
  const items = alarms.slice(0, most).map((alarm, i) => {
    const button = el("button", {type: "button"}, "Show");
    const name = names.includes(alarm.what) ? alarm.what : chosen.name;
    button.addEventListener("click", () => choose({name, step: nearest(alarm.step), head: Math.max(0, head_of(alarm))}));
    const side = small_is_worse.has(alarm.what) ? " below " : " beyond ";
    const how_far = alarm.layer ? [" ", ref(alarm, "value"), side, put(exact, alarm, "threshold")] : [" is not finite"];
    const title = el("summary", {}, "Step ", put(exact, alarm, "step"), ": ", ...whose(alarm), ", ", word_shown(ref(alarm, "what")), ...how_far);
    return el("li", {}, el("details", {open: i === 0 ? "" : undefined}, title, el("p", {}, ref(alarm, "words"), " ", button)));
  });
  return el("div", {}, alarms.length > most ? el("p", {class: "note"}, `The first ${most} of ${alarms.length}.`) : null,
            el("ol", {class: "alarms"}, items));
}

// All of it ---------------------------------------------------------------------------------------------------------------------

function section(id, title, question, ...content) {
  const asked = question ? el("p", {class: "question"}, question) : null;
  return el("section", {id, "aria-label": title}, el("h2", {}, title), asked, content);
}
/// Made again when something else is chosen.
function live(make) {
  const node = el("div");
  watchers.push(() => node.replaceChildren(make()));
  return node;
}

/// The finding: what the first alarm says, whose it is and when it came; or that there was none.
function finding() {
  if (!alarms.length) return names.length ? `No alarm in ${counted(results.seen, "step")}` : "No attention was seen";
  const [first] = alarms, claim = (first.words || "").split(":")[0] || `${word_of(first.what)} beyond ${number(first.threshold)}`;
  const more = unique(alarms.map((a) => a.layer)).length - 1;
  return el("span", {}, claim, first.layer ? [": ", layer_word(first.layer), ref(first, "layer")] : "", more > 0 ? ` and ${counted(more, "more layer")}` : "");
}
/// Where softmax is most closed in the end.
function most_closed() {
  if (!names.includes("trace_j")) return null;
  const last = values.trace_j[steps.length - 1], worst = d3.scan(last.map((v) => (isNumber(v) ? v : Infinity)));
  if (!isNumber(last[worst])) return null;
  return el("span", {}, ` In the end softmax is most closed in ${head_name(worst)}: it lets `, at_of("trace_j", steps.length - 1, worst),
            " of the gradient through.");
}

const lead = document.getElementById("lead");
add(document.getElementById("finding"), finding());
if (alarms.length)
  add(lead, el("span", {}, "The first alarm came at step ", put(exact, alarms[0], "step"), ": ", ...whose(alarms[0]), ": ",
               word_shown(ref(alarms[0], "what")), " was ", ref(alarms[0], "value"), ". "));
const counts = [[layers.length, "layer"], [heads.length, "head"], [results.seen, "step"], [alarms.length, "alarm"]];
add(lead, `${counts.map(([n, word]) => counted(n, word)).join(", ")}.`);
if (!alarms.length) add(lead, most_closed());
const unseen = Object.keys(results.unseen);
if (unseen.length) add(lead, ` ${counted(unseen.length, "place")} that look${unseen.length === 1 ? "s" : ""} like attention ` +
    `${unseen.length === 1 ? "was" : "were"} not seen.`);
add(document.getElementById("made"), el("span", {}, ...results.notes.flatMap((_, i) => [ref(results.notes, i), " "]), "Written by rootdk ",
                                        ref(results, "version"), ".",
                                        results.every > 1 ? ` One step in ${results.every} is shown.` : ""));
function unseen_list() {
  return unseen.length ? el("ul", {class: "alarms"}, unseen.map((name) => el("li", {}, el("b", {}, name), ": ", ref(results.unseen, name)))) : null;
}
const page = document.getElementById("watch");
if (names.length) {
  const first = alarms.length ? head_of(alarms[0]) : -1;
  const last = values[chosen.name][chosen.step];
  chosen.head = first >= 0 ? first : Math.max(0, d3.scan(last, small_is_worse.has(chosen.name) ? d3.ascending : d3.descending) || 0);
  page.append(bar(), section("map", "Which head is it?", null, map_figure()),
              section("time", "Since when?", null, time_figure(), strip()),
              section("alarms", "Alarms", "What was the matter?", alarm_list()),
              ...(unseen.length ? [section("unseen", "Not seen", "What is in none of these numbers?", unseen_list())] : []),
              section("head", "One head", "Everything that is known about it.", live(head_table)));
  changed();
} else {
  page.append(section("none", "Nothing yet", null, el("p", {class: "note"}, "No attention was seen."), unseen_list()));
}
document.getElementById("closing").append(el("p", {}, kThanks));
fit_charts();
