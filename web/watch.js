// The page of a watch: which head, since when, and what was said about it. values[statistic][step][head]; heads are those of all
// layers in a row.

const {steps, heads, alarms, values} = results;
const numbered = heads.map((h, index) => ({...h, index}));
const layers = unique(heads.map((h) => h.layer)).map((name) => ({name, heads: numbered.filter((h) => h.layer === name)}));
const statistics = {
  sigma_ratio: "σ/σ_c: spread of the scores over √(2 ln n). Above 1 rows are sharp, which may be learned; trace_j says whether gradient still passes.",
  raw_max: "Largest c·q·k, before cap and bias. This is what explodes.",
  raw_sigma: "Standard deviation of c·q·k within a row.",
  score_max: "Largest score as softmax sees it.",
  score_sigma: "Standard deviation of the scores within a row, as softmax sees them.",
  entropy: "Mean entropy of the rows, in nats. Near 0 one key takes all.",
  effective_keys: "How many keys a row looks at: e to the entropy.",
  mean_p_max: "Mean of the largest probability of a row.",
  median_p_max: "Median of the largest probability of a row.",
  share_p_max_over_099: "Share of the rows that give one key 0.99 or more.",
  trace_j: "1 − Σp²: how much gradient softmax lets through.",
  sink_mass: "What the sink takes of a row's probability.",
  mean_lse: "Mean logsumexp of the rows.",
  keys: "Keys that a row sees, geometric mean.",
  sigma_q: "Spread of the components of q.",
  sigma_k: "Spread of the components of k around their mean.",
  key_mean_norm: "Length of the mean key.",
  alignment: "1 where q and k have nothing to do with each other.",
  scale: "c, as the model applied it.",
  rows_masked: "Queries that see no key.",
  rows_not_finite: "Rows with NaN or infinity.",
  d_scores: "Squared length of the gradient that arrives at the scores.",
  d_log_scale: "Gradient of ln c.",
  d_q: "Squared length of the gradient of q.",
  d_k: "Squared length of the gradient of k.",
  d_v: "Squared length of the gradient of v.",
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
const head_name = (index) => `${heads[index].layer}, head ${heads[index].head}`;

const chosen = {name: names.includes("trace_j") ? "trace_j" : names[0], step: Math.max(0, steps.length - 1), head: 0};
const watchers = [];
const changed = () => watchers.forEach((watch) => watch());
function choose(what) {
  Object.assign(chosen, what);
  changed();
}

/// Logarithmic where numbers of very different size would hide each other.
function scale_of(name, range) {
  const all = everything(name), [low, high] = extent(all);
  if (low === undefined) return d3.scaleLinear().domain([0, 1]).range(range);
  const log = low > 0 && high / low > 50;
  const spread = low === high ? [low - Math.abs(low) / 2 - 1e-9, high + Math.abs(high) / 2 + 1e-9] : [low, high];
  return (log ? d3.scaleLog() : d3.scaleLinear()).domain(log ? [low, high] : spread).range(range);
}
/// Bright is worse.
function colours(name) {
  const unit = scale_of(name, small_is_worse.has(name) ? [1, 0] : [0, 1]);
  return (x) => (isNumber(x) ? d3.interpolateViridis(unit(x)) : "transparent");
}

// What to show ------------------------------------------------------------------------------------------------------------------

function bar() {
  const select = el("select", {id: "statistic"}, names.map((name) => el("option", {value: name}, name)));
  const slider = el("input", {id: "step", type: "range", min: 0, max: Math.max(0, steps.length - 1), step: 1});
  const shown_step = el("output"), meaning = el("p", {class: "note meaning"});
  select.addEventListener("input", () => choose({name: select.value}));
  slider.addEventListener("input", () => choose({step: Number(slider.value)}));
  watchers.push(() => {
    select.value = chosen.name;
    slider.value = chosen.step;
    shown_step.textContent = steps[chosen.step];
    meaning.textContent = statistics[chosen.name];
  });
  const controls = [el("label", {}, "Statistic", select), el("label", {}, "Step", slider, shown_step), meaning];
  return el("div", {class: "bar"}, el("div", {class: "controls"}, controls));
}

// The map -----------------------------------------------------------------------------------------------------------------------

/// An alarm without a head is of the whole layer.
const is_of = (alarm, layer, head) => alarm.layer === layer && (alarm.head === null || alarm.head === head);
const whose = (alarm) => [alarm.layer ? ref(alarm, "layer") : "the model", ...(alarm.head === null ? [] : [", head ", put(exact, alarm, "head")])];
const head_of = (alarm) => heads.findIndex((h) => is_of(alarm, h.layer, h.head));
/// Heads that an alarm was raised for, up to the step that is shown.
const alarmed = () => {
  const rung = alarms.filter((a) => a.step <= steps[chosen.step]);
  return new Set(heads.filter((h) => rung.some((a) => is_of(a, h.layer, h.head))).map((h) => `${h.layer}/${h.head}`));
};

function map_figure() {
  const {name, step} = chosen, colour = colours(name), most = d3.max(layers, (l) => l.heads.length), rung = alarmed();
  const ends = extent(everything(name));
  if (small_is_worse.has(name)) ends.reverse();
  return chart({
    label: `${name} of every head at step ${steps[step]}.`,
    caption: `From ${number(ends[0])} (dark) to ${number(ends[1])} (bright) over all steps. ` +
        (rung.size ? "! marks heads that raised an alarm by then. " : "") + "Choose a cell to follow that head.",
    draw({svg, width, spot, narrow}) {
      const room = Math.floor(width * (narrow ? .3 : .4) / 7), full = (l) => short_names.get(l.name);
      const label = (l) => (full(l).length > room ? `…${full(l).slice(-room + 1)}` : full(l));
      const left = 14 + 7 * d3.max(layers, (l) => label(l).length), top = 22;
      const cell = Math.max(4, Math.min(40, (width - left - 4) / most)), tall = Math.max(12, Math.min(30, cell));
      const g = svg.append("g").attr("transform", `translate(${left},${top})`);
      for (let h = 0; h < most; h += Math.max(1, Math.ceil(20 / cell)))
        g.append("text").attr("class", "quiet").attr("x", (h + .5) * cell).attr("y", -7).attr("text-anchor", "middle").text(h);
      layers.forEach((layer, row) => {
        const y = row * tall;
        g.append("text").attr("class", "quiet").attr("x", -8).attr("y", y + tall / 2 + 4).attr("text-anchor", "end")
            .text(label(layer)).append("title").text(layer.name);
        for (const {index, head} of layer.heads) {
          const value = at_of(name, step, index);
          const rect = g.append("rect").attr("class", "cell").attr("x", head * cell).attr("y", y).attr("rx", 2)
                           .attr("width", cell - 1).attr("height", tall - 1)
                           .attr("fill", isNumber(value.value) ? colour(value.value) : "var(--mark)")
                           .classed("chosen", index === chosen.head).on("click", () => choose({head: index}));
          mark(rect, value);
          if (cell >= 9 && rung.has(`${layer.name}/${head}`))
            g.append("text").attr("class", "alarmed").attr("x", (head + .5) * cell - .5).attr("y", y + tall / 2 + 4).text("!");
          spot(left + (head + .5) * cell, top + y + tall / 2, head_name(index), [[name, value]]);
        }
      });
      return top + layers.length * tall + 4;
    },
  });
}

// Over time ---------------------------------------------------------------------------------------------------------------------

function time_figure() {
  const {name} = chosen, worst = worst_of(name);
  const series = layers.map((layer) => steps.map((_, i) => worst(layer.heads, (h) => values[name][i][h.index])));
  const followed = steps.map((_, i) => at_of(name, i, chosen.head));
  const thresholds = unique(alarms.filter((a) => a.what === name).map((a) => a.threshold)).filter(isNumber);
  return chart({
    label: `${name} over the steps.`,
    caption: [`Thin: the ${small_is_worse.has(name) ? "smallest" : "largest"} of each layer's heads, first layers dark. `,
              `Bold: ${head_name(chosen.head)}. `, alarms.length ? "Triangles: alarms. " : "",
              thresholds.length ? "Dotted: their threshold." : ""],
    draw({svg, width, spot}) {
      const margin = {left: 46, right: 14, top: 30, bottom: 42}, w = width - margin.left - margin.right, h = 240;
      const x = d3.scaleLinear().domain(steps.length > 1 ? d3.extent(steps) : [steps[0] - 1, steps[0] + 1]).range([0, w]);
      const y = scale_of(name, [h, 0]);
      if (!y.base) y.nice();
      const g = svg.append("g").attr("transform", `translate(${margin.left},${margin.top})`);
      y_axis(g, y, w, name, 5);
      x_axis(g, x, h, "step", {values: x.ticks(Math.min(8, width / 70)).filter(Number.isInteger), width: w});
      const inside = (t) => t >= y.domain()[0] && t <= y.domain()[1];
      for (const t of thresholds.filter(inside))
        g.append("line").attr("class", "reference").attr("x2", w).attr("y1", y(t)).attr("y2", y(t));
      g.append("line").attr("class", "at").attr("x1", x(steps[chosen.step])).attr("x2", x(steps[chosen.step])).attr("y2", h);
      const path = (points) => d3.line().defined(isNumber).x((_, i) => x(steps[i])).y((v) => y(v))(points);
      series.forEach((points, i) => {
        const stroke = d3.interpolateViridis(.1 + .75 * i / Math.max(1, layers.length - 1));
        g.append("path").attr("class", "layer").attr("d", path(points)).attr("fill", "none").attr("stroke", stroke)
            .attr("stroke-width", 1.3).append("title").text(layers[i].name);
        if (steps.length === 1 && isNumber(points[0]))
          g.append("circle").attr("cx", x(steps[0])).attr("cy", y(points[0])).attr("r", 3).attr("fill", stroke);
      });
      g.append("path").attr("class", "one").attr("d", path(followed.map((v) => v.value)));
      for (const step of unique(alarms.map((a) => a.step)).filter((s) => s >= x.domain()[0] && s <= x.domain()[1]))
        g.append("path").attr("class", "bell").attr("d", d3.symbol().type(d3.symbolTriangle).size(34)())
            .attr("transform", `translate(${x(step)},${h - 5})`)
            .append("title").text(alarms.filter((a) => a.step === step).map((a) => a.text).join("\n"));
      steps.forEach((step, i) => {
        const value = followed[i];
        const rows = layers.slice(0, 8).map((l, k) => [short_names.get(l.name), number(series[k][i])]);
        const first = [`head ${heads[chosen.head].head}`, value];
        if (isNumber(value.value)) spot(margin.left + x(step), margin.top + y(value.value), `step ${step}`, [first, ...rows]);
      });
      return margin.top + h + margin.bottom;
    },
  });
}

/// Every head a line of pixels, every step a column.
function strip() {
  if (steps.length < 2) return null;
  const {name} = chosen, colour = colours(name), tall = Math.max(2, Math.min(14, Math.round(420 / heads.length)));
  const canvas = el("canvas", {width: steps.length, height: heads.length, style: `height: ${tall * heads.length}px`, role: "img",
                               "aria-label": `${name} of every head over the steps`});
  const paint = canvas.getContext("2d");
  heads.forEach((_, row) => steps.forEach((_, column) => {
    paint.fillStyle = colour(values[name][column][row]);
    paint.fillRect(column, row, 1, 1);
  }));
  const said = el("p", {class: "note"}, "Every head a line, every step a column; point at one, or choose it.");
  const place = (event) => {
    const box = canvas.getBoundingClientRect();
    const inside = (part, count) => Math.max(0, Math.min(count - 1, Math.floor(part * count)));
    return {step: inside((event.clientX - box.left) / box.width, steps.length),
            head: inside((event.clientY - box.top) / box.height, heads.length)};
  };
  canvas.addEventListener("pointermove", (event) => {
    const {step, head} = place(event);
    said.replaceChildren(...el("span", {}, `${head_name(head)}, step ${steps[step]}: `, at_of(name, step, head)).childNodes);
  });
  canvas.addEventListener("click", (event) => choose(place(event)));
  const labels = layers.filter((l, i) => i % Math.max(1, Math.ceil(14 * layers.length / (tall * heads.length))) === 0)
                     .map((l) => el("span", {style: `top: ${tall * l.heads[0].index + 1}px`}, short_names.get(l.name)));
  return el("div", {}, el("div", {class: "strip"}, canvas, el("div", {class: "names", "aria-hidden": "true"}, labels)),
            el("div", {class: "steps"}, el("span", {}, `step ${steps[0]}`), el("span", {}, steps[steps.length - 1])), said);
}

// One head ----------------------------------------------------------------------------------------------------------------------

function head_table() {
  const rows = names.map((name) => {
    const known = steps.map((_, i) => at_of(name, i, chosen.head)).filter((v) => isNumber(v.value));
    known.sort((a, b) => a.value - b.value);
    const code = Object.assign(el("code"), {textContent: name});  // as it is: the gradient of k is no d_k
    return [code, at_of(name, chosen.step, chosen.head), known[0] || "–", known[known.length - 1] || "–", statistics[name]];
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
    const title = el("summary", {}, "Step ", put(exact, alarm, "step"), ": ", ...whose(alarm), ", ", ref(alarm, "what"), ...how_far);
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
/// Drawn again when something else is chosen.
function live(draw) {
  const node = el("div");
  watchers.push(() => node.replaceChildren(...[draw()].filter((x) => x)));
  return node;
}

const plural = (n, word) => `${grouped(String(n))} ${word}${n === 1 ? "" : "s"}`;
const lead = document.getElementById("lead");
const counts = [[layers.length, "layer"], [heads.length, "head"], [results.seen, "step"], [alarms.length, "alarm"]];
add(lead, `${counts.map(([n, word]) => plural(n, word)).join(", ")}.`);
if (alarms.length)
  add(lead, el("span", {}, " The first alarm came at step ", put(exact, alarms[0], "step"), ": ", ...whose(alarms[0]), ", whose ",
               ref(alarms[0], "what"), " was ", ref(alarms[0], "value"), "."));
const unseen = Object.keys(results.unseen);
if (unseen.length) add(lead, ` ${plural(unseen.length, "place")} that look${unseen.length === 1 ? "s" : ""} like attention ` +
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
  page.append(bar(), section("map", "Layer × head", "Which head is it?", live(map_figure)),
              section("time", "Over time", "Since when?", live(time_figure), live(strip)),
              section("alarms", "Alarms", "What was the matter?", alarm_list()),
              ...(unseen.length ? [section("unseen", "Not seen", "What is in none of these numbers?", unseen_list())] : []),
              section("head", "One head", "Everything that is known about it.", live(head_table)));
  changed();
} else {
  page.append(section("none", "Nothing yet", null, el("p", {class: "note"}, "No attention was seen."), unseen_list()));
}
const thanks = "Charts by D3 (BSD-3-Clause, Mike Bostock). Nothing was loaded from anywhere to show this page.";
document.getElementById("closing").append(el("p", {}, thanks));
