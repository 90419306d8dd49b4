// The site's parts, their state, and what sets it: sliders, choices, switches, boxes. A control and its state follow
// each other, whoever changes first: a finger, a key, a link, the Back button.

const site_parts = [];     // in the order of their tabs
let site_open = () => {};  // (id, values, baggage) opens a tab; the page fills it in
/// {id, title, defaults, valid, make(panel, state) → {shown, hidden, receive}}.
function site_part(part) {
  part.state = new PartState(part.defaults || {}, part.valid);
  site_parts.push(part);
}

/// For `valid`: nothing else makes sense.
const one_of = (list) => (value) => list.includes(value);

/// What a part shows, by name. Defaults say the type: a number, text, true or false, a list of text, or null for a
/// number that may be off. valid: of some, which of that type make sense at all.
class PartState {
  constructor(defaults, valid = {}) {
    this.defaults = defaults;
    this.valid = valid;
    this.values = {...defaults};
    this.listeners = [];
    this.written = () => {};  // the page's: puts it into the URL
  }
  on(listener) { this.listeners.push(listener); }
  set(values) { this.take(values, true); }
  take(values, write) {
    const changed = new Set();
    for (const [name, value] of Object.entries(values))
      if (Object.hasOwn(this.defaults, name) && String(this.values[name]) !== String(value)) {
        this.values[name] = value;
        changed.add(name);
      }
    if (!changed.size) return;
    if (write) this.written();
    for (const listener of this.listeners) listener(changed);
  }
  /// From a URL: what it does not say is as at first, and so is what makes no sense.
  read(query) {
    const values = {};
    for (const [name, standard] of Object.entries(this.defaults)) {
      const text = query.get(name);
      if (text === null)
        values[name] = standard;
      else if (Array.isArray(standard))
        values[name] = query.getAll(name).filter((one) => one !== "");
      else if (typeof standard === "boolean")
        values[name] = text === "1" || text === "true";
      else if (typeof standard === "string")
        values[name] = text;
      else
        values[name] = text.trim() !== "" && Number.isFinite(Number(text)) ? Number(text) : standard;
      if (this.valid[name] && !this.valid[name](values[name])) values[name] = standard;
    }
    this.take(values, false);
  }
  query() {
    const out = new URLSearchParams();
    for (const [name, standard] of Object.entries(this.defaults)) {
      const value = this.values[name];
      if (String(value) === String(standard)) continue;
      if (Array.isArray(value))
        (value.length ? value : [""]).forEach((one) => out.append(name, one));
      else
        out.set(name, value === null ? "off" : value === true ? "1" : value === false ? "0" : String(value));
    }
    // Rules and lists are easier to read, and to pass on, without escapes that a fragment does not need.
    return out.toString().replace(/%2C/g, ",").replace(/%28/g, "(").replace(/%29/g, ")").replace(/%2F/g, "/");
  }
}

/// Indices that are set low would be read letter by letter.
const spoken_label = (label, hint) => (hint ? `${label}, ${hint}` : label);

let control_count = 0;
const control_id = () => `control-${++control_count}`;
const whole = exact;
/// At most so many digits, more where they stand before the point, without zeros at the end: 8, 0.125, 22.6, 37,364.
const short = (x, most = 3) =>
    (isNumber(x) && Math.abs(x) >= 1e-4 && Math.abs(x) < 10 ** most ? exact(Number(x.toPrecision(most))) :
                                                                     number(x, most));

/// Sizes that double in two steps: 1, 2, 3, 4, 6, 8, 12, …
function doublings(from, to) {
  const out = [];
  for (let x = 1; x <= to; x *= 2)
    for (const y of [x, 1.5 * x])
      if (Number.isInteger(y) && y >= from && y <= to) out.push(y);
  return out;
}

/// Where the engine takes more than one would wait for in a page.
function want_whole(name, value, least, most) {
  if (!Number.isInteger(value) || value < least || value > most)
    throw new EngineError(`${name}: ${exact(value)}, but a whole number from ${least} to ${exact(most)} is wanted`);
}

const calm = () => matchMedia("(prefers-reduced-motion: reduce)").matches;

/// values: what it may be, in order; or min, max and step. exact: a box to type any number into. off: what it starts
/// from when switched on; then it may be null. play: a button that runs through the values.
function slider({state, name, label, hint, values, min, max, step, format = number, exact: typed, off, play, ticks}) {
  const id = control_id();
  const places =
      values || d3.range(0, Math.round((max - min) / step) + 1).map((i) => Number((min + i * step).toPrecision(9)));
  const nearest = (x) => d3.scan(places, (a, b) => Math.abs(a - x) - Math.abs(b - x));
  const range = el(
      "input", {type: "range", id, min: 0, max: places.length - 1, step: 1, "aria-label": spoken_label(label, hint)});
  const box =
      typed ? el("input", {type: "number", class: "exact", "aria-label": `${label}, exactly`, step: "any"}) : null;
  const shown_value = typed ? box : el("output", {for: id
  });
  const head = el("span", {class: "head"}, el("label", {for: id
                  }, label), hint ? el("small", {}, hint) : null);
  const node = el("div", {class: "control slider"});
  const swap = off === undefined ? null : el("input", {type: "checkbox", id: `${id}-on`, "aria-label": `${label}: on`});

  function follow() {
    const value = state.values[name], there = value !== null;
    if (swap) {
      swap.checked = there;
      range.disabled = !there;
      if (box) box.disabled = !there;
    }
    const at = there ? value : off;
    range.value = String(nearest(at));
    range.style.setProperty("--share", String(places.length > 1 ? Number(range.value) / (places.length - 1) : 0));
    range.setAttribute("aria-valuetext", there ? format(at) : "off");
    if (!typed)
      shown_value.textContent = there ? format(at) : "off";
    else if (document.activeElement !== box)
      box.value = there ? String(at) : "";
  }
  const stop = {now: () => {}};
  range.addEventListener("input", () => {
    stop.now();
    state.set({[name]: places[Number(range.value)]});
  });
  if (box) {
    box.addEventListener("input", () => {
      if (box.value.trim() !== "" && Number.isFinite(Number(box.value))) state.set({[name]: Number(box.value)});
    });
    box.addEventListener("blur", follow);
  }
  if (swap) swap.addEventListener("change", () => state.set({[name]: swap.checked ? off : null}));
  node.append(
      ...[swap, head, shown_value, el("span", {class: "track"}, range, ticks ? tick_row(places, ticks, format) : null),
          play ? play_button({state, name, places, nearest, stop, label}) : null]
          .filter(Boolean));
  if (play) node.classList.add("playable");
  if (swap) node.classList.add("switchable");
  state.on((changed) => {
    if (changed.has(name)) follow();
  });
  follow();
  return node;
}

/// A few of the values beneath the track, each where the thumb would stand.
const tick_row = (places, ticks, format) =>
    el("span", {class: "ticks", "aria-hidden": "true"},
       ticks.filter((t) => places.includes(t))
           .map((t) => el("span", {style: `--share:${places.indexOf(t) / (places.length - 1)}`}, format(t))));

function play_button({state, name, places, nearest, stop, label}) {
  const node = el("button", {type: "button", class: "play", "aria-label": `Run through ${label}`}, "▶");
  let timer = 0;
  stop.now = () => {
    clearInterval(timer);
    timer = 0;
    node.textContent = "▶";
    node.setAttribute("aria-label", `Run through ${label}`);
  };
  node.addEventListener("click", () => {
    if (timer) return stop.now();
    let at = nearest(state.values[name]);
    if (at === places.length - 1) at = -1;
    node.textContent = "⏸";
    node.setAttribute("aria-label", "Stop");
    timer = setInterval(() => {
      if (++at >= places.length || !node.isConnected) return stop.now();
      state.set({[name]: places[at]});
    }, calm() ? 900 : 260);
  });
  return node;
}

/// A few options side by side, as radio buttons. options: [{id, label, style}].
function segments({state, name, label, options}) {
  const group = control_id();
  const inputs = options.map(
      (o) => el("input", {type: "radio", name: group, id: `${group}-${o.id}`, value: o.id, "aria-label": o.label}));
  const follow = () => inputs.forEach((input) => (input.checked = input.value === String(state.values[name])));
  inputs.forEach((input) => input.addEventListener("change", () => state.set({[name]: input.value})));
  state.on((changed) => changed.has(name) && follow());
  follow();
  return el(
      "fieldset", {class: "control segments"}, el("legend", {}, label),
      el("span", {class: "row"},
         options.map((o, i) => el("span", {class: "segment"}, inputs[i], el("label", {for: inputs[i].id
                                  }, o.style ? key_of(o.style) : null, el("span", {}, o.label))))));
}

/// A menu. options: [{id, label, group}]; typed: any other text may be the value, too.
function choice({state, name, label, hint, options}) {
  const id = control_id();
  const select = el("select", {id});
  const groups = d3.nest().key((o) => o.group || "").entries(options);
  const option = (o) => el("option", {value: o.id}, o.label);
  for (const {key, values} of groups)
    select.append(...(key ? [el("optgroup", {label: key}, values.map(option))] : values.map(option)));
  const follow = () => {
    const value = String(state.values[name]);
    if (![...select.options].some((o) => o.value === value)) select.append(el("option", {value}, value));
    select.value = value;
  };
  select.addEventListener("change", () => state.set({[name]: select.value}));
  state.on((changed) => changed.has(name) && follow());
  follow();
  return el("div", {class: "control choice"}, el("label", {for: id
            }, label, hint ? el("small", {}, hint) : null), select);
}

function toggle({state, name, label}) {
  const id = control_id();
  const box = el("input", {type: "checkbox", id});
  const follow = () => (box.checked = state.values[name]);
  box.addEventListener("change", () => state.set({[name]: box.checked}));
  state.on((changed) => changed.has(name) && follow());
  follow();
  return el("div", {class: "control toggle"}, box, el("label", {for: id
            }, label));
}

function number_box({state, name, label, hint, min, max, step = 1}) {
  const id = control_id();
  const box =
      el("input", {type: "number", id, min, max, step, class: "exact", "aria-label": spoken_label(label, hint)});
  const follow = () => {
    if (document.activeElement !== box) box.value = String(state.values[name]);
  };
  box.addEventListener("input", () => {
    const written = box.value.trim() !== "" && Number.isFinite(Number(box.value));
    if (written && !box.validity.stepMismatch) state.set({[name]: Number(box.value)});
  });
  box.addEventListener("blur", follow);
  state.on((changed) => changed.has(name) && follow());
  follow();
  return el("div", {class: "control box"}, el("label", {for: id
            }, label, hint ? el("small", {}, hint) : null), box);
}
