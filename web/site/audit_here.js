// Audit it here: a checkpoint of any size, read in slices by the engine's worker and sent nowhere; what audit_view.js makes of it;
// with a second file, what moved. A model that was trained in the tab before comes by itself.

const audit_options = [
  {name: "at", label: "Keys", hint: "for which heads are judged; if empty, the model's longest context"},
  {name: "heads", label: "Query heads", hint: "if no config.json says how many"},
  {name: "kv_heads", label: "Key heads", hint: "if they are fewer"},
  {name: "head_dim", label: "d_k", hint: "of each head"},
  {name: "context", label: "Longest context", hint: "in tokens"},
];

/// A size as people say it: 1.2 GB.
function bytes_in_words(n) {
  const step = Math.min(4, Math.max(0, Math.floor(Math.log10(Math.max(1, n)) / 3)));
  return `${short(n / 1000 ** step)} ${["bytes", "kB", "MB", "GB", "TB"][step]}`;
}

/// The samples that ship with the page: inside it where it is one file, else beside it.
async function sample_checkpoint(name) {
  const inside = document.getElementById(`sample-${name}`), file = `sample-${name}.safetensors`;
  if (!inside) Engine.want_server();
  if (inside) return new File([Uint8Array.from(atob(inside.textContent.trim()), (c) => c.charCodeAt(0))], file);
  return new File([await (await fetch(file)).blob()], file);
}

/// A place for one checkpoint: a file, several (shards, config.json), or a folder; chosen, or dropped on it.
function checkpoint_place({title, says, changed}) {
  const id = control_id(), told = el("p", {class: "file-told"}, says);
  const files = el("input", {type: "file", id, multiple: "", accept: ".safetensors,.gguf,.npz,.json"});
  const folder = el("input", {type: "file", webkitdirectory: "", hidden: ""});
  const whole_folder = el("button", {type: "button", class: "plain-button"}, "Choose folder");
  const clear = el("button", {type: "button", class: "plain-button", hidden: ""}, "Remove");
  const node = el("div", {class: "drop checkpoint"}, el("label", {for: id}, title), told,
                  el("div", {class: "file-row"}, files, whole_folder, folder, clear));
  let given = null;

  function take(list, why) {
    const usable = [...list].filter((file) => /\.(safetensors|gguf|npz|json)$/i.test(file.name));
    const weights = usable.filter((file) => !/\.json$/i.test(file.name));
    given = weights.length === 1 && usable.length === 1 ? usable[0] : weights.length ? usable : null;
    clear.hidden = !given;
    const size = bytes_in_words(d3.sum(usable, (file) => file.size));
    told.textContent = !list.length ? says :
        !given                      ? "No .safetensors, .gguf or .npz among these files." :
        weights.length === 1        ? `${weights[0].name}, ${size}${why ? `, ${why}` : ""}` :
                                      `${counted(usable.length, "file")}, ${size}`;
    changed();
  }
  files.addEventListener("change", () => take(files.files));
  folder.addEventListener("change", () => take(folder.files));
  whole_folder.addEventListener("click", () => folder.click());
  clear.addEventListener("click", () => {
    files.value = folder.value = "";
    take([]);
    files.focus();
  });
  node.addEventListener("dragover", (event) => {
    event.preventDefault();
    node.classList.add("over");
  });
  node.addEventListener("dragleave", () => node.classList.remove("over"));
  node.addEventListener("drop", async (event) => {
    event.preventDefault();
    node.classList.remove("over");
    take(await dropped_files(event.dataTransfer));
  });
  return {node, take, given: () => given};
}

/// Of what was given, what the engine can read.
const readable = (given) => {
  if (Array.isArray(given)) return Promise.all(given.map(readable));
  return /\.npz$/i.test(given.name) ? stored_npz(given) : given;
};

/// What was dropped, the contents of one folder included.
async function dropped_files(transfer) {
  const entries = [...transfer.items].map((item) => item.webkitGetAsEntry && item.webkitGetAsEntry()).filter(Boolean);
  const folders = entries.filter((entry) => entry.isDirectory);
  if (!folders.length) return [...transfer.files];
  const reader = folders[0].createReader(), found = [];
  for (;;) {
    const some = await new Promise((done, failed) => reader.readEntries(done, failed));
    if (!some.length) break;
    found.push(...some.filter((entry) => entry.isFile));
  }
  return Promise.all(found.map((entry) => new Promise((done, failed) => entry.file(done, failed))));
}

site_part({
  id: "audit",
  title: "Audit it here",
  defaults: {
    sample: false,
    at: null,
    heads: null,
    kv_heads: null,
    head_dim: null,
    context: null,
    show: "σ/σ_c",  // of the map
    keys: "",       // of the map; none: those that verdicts are for
    head: ""        // that is shown; none: the worst
  },
  make(panel_node, state) {
    const engine = new Engine();
    let stop = null;
    const out = el("div", {class: "audit found"});
    const refusal = el("p", {class: "refused", role: "alert"}), status = el("p", {class: "note", role: "status"});
    const bar = el("progress", {max: 1, value: 0, "aria-label": "Read", hidden: ""});
    const cancel = el("button", {type: "button", class: "plain-button", hidden: ""}, "Stop");
    cancel.addEventListener("click", () => stop && stop.abort(new DOMException("stopped", "AbortError")));

    const model = checkpoint_place({
      title: "A checkpoint: .safetensors, .gguf or .npz, of any size",
      says: "Drop a file or a folder here, or choose one. It is read where it lies; nothing is uploaded.",
      changed: () => {
        if (!model.given() || model.given().name !== "sample-trained.safetensors") state.set({sample: false, head: ""});
        audit();
      }
    });
    const earlier = checkpoint_place({
      title: "An earlier one of the same model, to see what moved",
      says: "Not needed.",
      changed: () => audit()
    });
    const sample = el("button", {type: "button", class: "plain-button strong-button"}, "Use the sample");
    sample.addEventListener("click", () => state.set({sample: true}));

    const given = () => Object.fromEntries(audit_options.map(({name}) => [name, state.values[name]]).filter(([, value]) => isNumber(value)));
    const audit = newest_only(async () => {
      const checkpoint = model.given(), against = earlier.given();
      refusal.textContent = status.textContent = "";
      if (!checkpoint) {
        out.replaceChildren();
        return;
      }
      stop = new AbortController();
      cancel.hidden = bar.hidden = false;
      bar.value = 0;
      status.textContent = "Reading …";
      try {
        const question = {checkpoint: await readable(checkpoint), ...given()};
        if (against) question.against = await readable(against);
        const found = note(await engine.call("audit", question, {progress: (share) => (bar.value = share), signal: stop.signal}), "/audit");
        status.textContent = "";
        show(found, checkpoint, against);
      } catch (error) {
        out.replaceChildren();
        status.textContent = error.name === "AbortError" ? "Stopped." : "";
        if (error.name !== "AbortError") say_why(refusal, error);
      } finally {
        cancel.hidden = bar.hidden = true;
        stop = null;
      }
    });

    const tied = in_address(state, {menus: {Show: "show", Keys: "keys"}});
    let choose = () => {};  // of the audit that is shown, the head that the address names
    function show(found, checkpoint, against) {
      const view = audit_view(found, {prefix: "audit-"}), worst = view.chosen();
      choose = () => view.choose(state.values.head || worst);
      choose();
      view.watch(() => state.set({head: view.chosen() === worst ? "" : view.chosen()}));
      const folder_of = (files) => (files[0].webkitRelativePath ? files[0].webkitRelativePath.split("/")[0] : "model");
      const name_of = (files) => (Array.isArray(files) ? `${folder_of(files)}/` : files.name);
      const command = command_of("audit", given()).replace("rootdk audit", `rootdk audit ${name_of(checkpoint)}`) +
          (against ? ` --against ${name_of(against)}` : "");
      const json = el("button", {type: "button", class: "plain-button"}, "Download as JSON");
      json.addEventListener("click", () => download("audit.json", "application/json", `${JSON.stringify(found)}\n`));
      const map = view.map.querySelector("figure");
      tied(with_saving(map, {name: "audit-map", title: "The map of heads", numbers: () => view.numbers()}));
      const save_head = () => view.head.querySelector("h2") && with_saving_all(view.head, {name: "audit-head", title: view.head.querySelector("h2").textContent});
      new MutationObserver(save_head).observe(view.head, {childList: true, subtree: true});  // another head has other figures
      save_head();
      out.replaceChildren(...[
        el("header", {class: "finding"}, el("h2", {}, ref(found, "headline")), el("p", {class: "claim"}, ref(found, "conclusion")),
           el("p", {class: "note"}, visible(name_of(checkpoint)), " · family ", ref(found, "family"), " · scale ", rule_name(found.scale_rule),
              ` · ${counted(found.layers.length, "attention layer")} · ${counted(view.heads.length, "head")}`)),
        view.map, view.drift, view.head, view.table,
        el("div", {class: "row-of-buttons"}, json),
        el("details", {class: "how"}, el("summary", {}, "The same numbers in a terminal"), el("code", {tabindex: 0}, el("span", {"data-at": "/audit"}, command)))
      ].filter(Boolean));
      fit_charts(out);
      out.dataset.answered = name_of(checkpoint) + (against ? ` against ${name_of(against)}` : "");
      say_soon(found.headline);
    }

    const boxes = audit_options.map(({name, label, hint}) => number_or_nothing({state, name, label, hint}));
    const settings = el("details", {class: "more-settings"}, el("summary", {}, "What the files do not say"), el("div", {class: "control-grid"}, boxes));
    async function take_sample() {
      try {
        const [now, before] = await Promise.all([sample_checkpoint("trained"), sample_checkpoint("untrained")]);
        earlier.take([before], "the same model before training");
        model.take([now], "trained by this project: 4 layers of 4 heads that recall pairs");
      } catch (error) {
        say_why(refusal, error);
      }
    }
    state.on((changed) => {
      if (changed.has("sample") && state.values.sample) take_sample();
      if (changed.has("head")) choose();
      if (audit_options.some(({name}) => changed.has(name)) && model.given()) audit();
    });
    panel_node.append(
        el("div", {class: "part-head"}, el("h2", {}, "Audit it here"),
           el("p", {}, "Drop a checkpoint and see how close each of its heads is to freezing, from its weights, without running it. This page reads the file in slices and sends it nowhere.")),
        el("div", {class: "live audit-files"}, el("div", {class: "places"}, model.node, earlier.node),
           el("div", {class: "row-of-buttons"}, sample, el("span", {class: "note"}, "No checkpoint at hand? Here is one that the project trained, and the same model before training, to compare.")),
           settings, refusal, status, bar, cancel),
        out);
    if (state.values.sample) take_sample();
    return {
      receive({file, before, words}) {
        state.set({sample: false, head: ""});
        earlier.take(before ? [before] : []);
        model.take([file], words);
      }
    };
  },
});

/// A number, or nothing: an empty box.
function number_or_nothing({state, name, label, hint}) {
  const id = control_id(), box = el("input", {type: "number", id, min: 1, step: 1, class: "exact"});
  const follow = () => {
    if (document.activeElement !== box) box.value = isNumber(state.values[name]) ? String(state.values[name]) : "";
  };
  box.addEventListener("change", () => state.set({[name]: box.value.trim() !== "" && Number.isFinite(Number(box.value)) ? Number(box.value) : null}));
  state.on((changed) => changed.has(name) && follow());
  follow();
  return el("div", {class: "control box"}, el("label", {for: id}, label, hint ? el("small", {}, hint) : null), box);
}
