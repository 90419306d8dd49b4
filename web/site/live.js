// Figures that follow a state: they ask the engine when what they depend on has changed and they are in sight, one
// question at a time, always the newest; and they say what came of it, in a sentence and as the command that gives the
// same numbers.

let quick_engine = null, beside_engine = null, slow_engine = null;
/// For what is quick. What takes long should have an Engine, and so a worker, of its own.
const site_engine = () => (quick_engine = quick_engine || new Engine());
/// For the second of two that are asked at once.
const engine_beside = () => (beside_engine = beside_engine || new Engine());

/// Runs work(x) for the newest x: one under way, one waiting, those between dropped.
function newest_only(work) {
  let busy = false, waiting = null;
  return async function run(x) {
    if (busy) {
      waiting = {x};
      return;
    }
    busy = true;
    try {
      await work(x);
    } finally {
      busy = false;
      if (waiting) {
        const next = waiting.x;
        waiting = null;
        run(next);
      }
    }
  };
}

/// The command line of a question, as a shell takes it.
function command_of(verb, args) {
  const quoted = (text) => (/^[\w.,:=/+-]+$/.test(text) ? text : `"${text.replace(/(["$`\\])/g, "\\$1")}"`);
  const names = {correlation: "corr"};
  const words = ["rootdk", verb];
  for (const [name, value] of Object.entries(args)) {
    if (value === null || value === undefined || value === false) continue;
    const option = `--${(names[name] || name).replace(/_/g, "-")}`;
    if (value === true)
      words.push(option);
    else if (name === "k" && Array.isArray(value[0]))
      value.forEach((key) => words.push(`${option}${key[0] < 0 ? "=" : " "}${key.join(",")}`));
    else if (value.data)
      words.push(`${name}.npy`);
    else if (value instanceof Blob)
      words.push(quoted(value.name || name));
    else {
      const text = Array.isArray(value) ? value.join(",") : String(value);
      words.push(/^-/.test(text) ? `${option}=${quoted(text)}` : `${option} ${quoted(text)}`);
    }
  }
  return words.join(" ");
}

/// Spoken when a slider has come to rest, so that one who listens is not flooded.
const say_soon = (() => {
  let region = null, timer = 0;
  return (text) => {
    region = region || document.getElementById("spoken");
    clearTimeout(timer);
    timer = setTimeout(() => (region.textContent = text), 900);
  };
})();

const fresh = async (verb, args, at, engine = site_engine()) => note(await engine.call(verb, args), at);
/// For what takes a while and is wanted again: asked once, and in a worker that no slider waits for.
const kept = (() => {
  const answers = new Map();
  return (verb, args, at) => {
    const question = JSON.stringify([verb, args], (_, value) => (value instanceof Blob ? value.name : value));
    if (!answers.has(question)) {
      slow_engine = slow_engine || new Engine();
      answers.set(question, fresh(verb, args, at, slow_engine));
      answers.get(question).catch(() => answers.delete(question));
    }
    return answers.get(question);
  };
})();

/// What came instead of an answer, said to the reader; where it is a fault of the page, to the console as well.
function say_why(refusal, error) {
  refusal.textContent = visible(error.message);
  if (!(error instanceof EngineError)) throw error;
}

/// Text of about that length, not to be seen: the room that a sentence will take.
const filler = (length) => "and so it goes on ".repeat(Math.ceil(length / 18)).slice(0, length);
/// What has once been as high stays so, at this width: what is below does not jump with every answer.
function keep_height(node, change) {
  const width = node.clientWidth;
  const before = node.keptWidth === undefined || node.keptWidth === width ? node.offsetHeight : 0;
  change();
  node.keptWidth = width;
  node.style.minHeight = before ? `${before}px` : "";
}

/// state, needs: names whose change asks again. ask(values, call) → data, where call(verb, args, key, {keep, beside}) asks the
/// engine. draw(stage, data) → height, also before there is data: nothing may move when it comes. label(data),
/// caption(data), conclude(data), numbers(data) as for chart() and with_saving(). at: where its results stand,
/// "story/2". now: ask without waiting to be seen. figures: several that show one answer, each {name, title, draw,
/// label, caption, numbers, series, choices, address}; else those are its own. more(data) → nodes beneath, made anew with
/// every answer. says_first: the sentence stands above the figures. says: about how many letters it has. address: the
/// chart's own choices as in_address() wants them. limits: of whole numbers among its needs, {name: [least, most]}.
function live({
  state, needs, ask, at, conclude, controls, now, figures, more, says_first, says = 180, limits = {}, ...own
}) {
  let data = null, asked = [], dirty = true, near = Boolean(now);
  const drawn = (figures || [own]).map((f) => {
    const figure = chart({
      label: () => (data ? f.label(data) : `${f.title}: being computed.`),
      caption: f.caption && (() => f.caption(data)),
      series: f.series,
      choices: f.choices,
      draw: (stage) => f.draw(stage, data),
    });
    if (f.address) in_address(state, f.address)(figure);
    return with_saving(figure, {name: f.name, title: f.title, numbers: f.numbers && (() => data && f.numbers(data))});
  });
  const sentence = conclude ? el("p", {class: "says"}, el("span", {class: "to-come"}, filler(says))) : null;
  const refusal = el("p", {class: "refused", role: "alert"});
  const command = el("code", {});
  const how = el("details", {class: "how"}, el("summary", {}, "The same numbers in a terminal"), command);
  const beneath = more ? el("div", {class: "more"}) : null;
  const node =
      el("div", {class: "live", "data-live": at}, controls || null, says_first ? sentence : null,
         figures ? el("div", {class: "figures"}, drawn.map((f, i) => [el("h3", {}, figures[i].title), f])) : drawn[0],
         says_first ? null : sentence, refusal, beneath, how);

  const call = async (verb, args, key, {keep, beside} = {}) => {
    const place = `/${at}${key ? `/${key}` : ""}`;
    const one = {words: command_of(verb, args), at: place};
    asked.push(one);  // in the order of asking, whoever answers first
    const result =
        await (keep ? kept(verb, args, place) : fresh(verb, args, place, beside ? engine_beside() : site_engine()));
    one.at = pointers.get(result);
    return result;
  };
  const run = newest_only(async (values) => {
    asked = [];
    const slow = setTimeout(() => node.setAttribute("aria-busy", "true"), 250);
    try {
      for (const [name, range] of Object.entries(limits))
        if (needs.includes(name)) want_whole(name, values[name], ...range);
      data = await ask(values, call);
      refusal.textContent = "";
      command.replaceChildren(...asked.map((one) => el("span", {"data-at": one.at}, one.words)));
      // The sentence first, whose height is asked for: once figures are drawn, the browser would lay them out for that.
      if (sentence) {
        keep_height(sentence, () => sentence.replaceChildren(...el("span", {}, conclude(data)).childNodes));
        if ((says_first ? node.parentElement : node).contains(document.activeElement)) say_soon(sentence.textContent);
      }
      drawn.forEach((figure) => figure.redraw());
      if (beneath) beneath.replaceChildren(...[more(data)].flat().filter(Boolean));
      if (needs.every((name) => String(values[name]) === String(state.values[name])))
        node.dataset.answered = JSON.stringify(Object.fromEntries(needs.map((name) => [name, values[name]])));
    } catch (error) {
      say_why(refusal, error);
    } finally {
      clearTimeout(slow);
      node.removeAttribute("aria-busy");
    }
  });
  const refresh = () => {
    if (!near || !dirty) return;
    dirty = false;
    run({...state.values});
  };
  state.on((changed) => {
    if (!needs.some((one) => changed.has(one))) return;
    dirty = true;
    delete node.dataset.answered;  // it is there while what is drawn is what was asked for
    refresh();
  });
  new IntersectionObserver(([entry]) => {
    near = entry.isIntersecting;
    refresh();
  }, {rootMargin: "50% 0px"}).observe(node);
  refresh();
  return {node, figures: drawn, data: () => data};
}
