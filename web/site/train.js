// Train it here: the recall task under three rules at once, each in a worker of its own, and the sweep over learning rates. What is
// drawn has the shape of `rootdk train --json`, and the same losses.

const kTrainRules = ["none", "sqrt_dk", "dk"];
const kTrainRates = [3e-4, 1e-3, 3e-3, 1e-2, 3e-2];  // the command's
const kRecallKeys = 24;                              // places of a sequence: eight pairs and eight keys again
const kStepColumns = ["loss", "accuracy", "gradient_norm"], kHeadColumns = ["sigma", "entropy", "p_max", "score_max"];
const kNotTrained = "Not trained yet: all three start from the same weights.";
const untold = () => [kNotTrained, el("span", {class: "to-come"}, filler(110))];  // with the room that the finding will take
const kBetween = 120;  // milliseconds between two answers of a worker, about

const empty_run = (seed) => ({
  seed,
  outcome: "stopped",
  evaluations: {step: [], loss: [], accuracy: []},
  steps: {step: [], ...Object.fromEntries([...kStepColumns, ...kHeadColumns].map((name) => [name, []])), heads: []}
});

/// One run in a worker: begun, advanced until it is stopped or done, its weights for the taking.
class TrainingRun {
  constructor(settings, log) {
    this.settings = settings;  // {rule, dk, learning_rate, seed, steps}
    this.log = log;            // what empty_run made, filled as it goes
    this.engine = new Engine();
    this.id = null;
    this.first = null;  // its weights before the first step
    this.done = false;
  }
  async begin() {
    const {rule, dk, learning_rate, seed, steps} = this.settings;
    const begun = await this.engine.call("train_start", {task: "recall", rule, dk, learning_rate, seed, steps});
    this.id = begun.run;
    this.first = await this.engine.call("train_checkpoint", {run: this.id});
  }
  /// From a file that weights() gave, now or another day.
  static async resumed(file) {
    const run = new TrainingRun(null, null);
    const {run: id, rule, dk, learning_rate, seed, last_step, ...answer} = await run.engine.call("train_resume", {file});
    run.settings = {rule, dk, learning_rate, seed, steps: last_step};
    run.log = empty_run(seed);
    run.id = id;
    run.take(answer);
    return run;
  }
  /// on: called after every answer. stopped: asked before every question.
  async advance(on, stopped) {
    let some = 1;
    while (!this.done && !stopped()) {
      const started = performance.now();
      const answer = await this.engine.call("train_advance", {run: this.id, steps: some});
      this.take(answer);
      on(this);
      const each = (performance.now() - started) / some;
      some = Math.max(1, Math.min(25, Math.round(kBetween / each)));
    }
  }
  /// An answer's columns, at the end of the log's.
  take(answer) {
    const {steps, evaluations} = this.log;
    for (const name of ["step", ...kStepColumns, ...kHeadColumns]) steps[name].push(...answer.steps[name]);
    answer.steps.heads.forEach((head, h) => {
      if (!steps.heads[h]) steps.heads[h] = {layer: head.layer, head: head.head, ...Object.fromEntries(kHeadColumns.map((name) => [name, []]))};
      for (const name of kHeadColumns) steps.heads[h][name].push(...head[name]);
    });
    for (const name of Object.keys(evaluations)) evaluations[name].splice(0, Infinity, ...answer.evaluations[name]);  // all so far
    this.log.outcome = answer.outcome;
    this.done = answer.done;
  }
  weights() {
    return this.engine.call("train_checkpoint", {run: this.id});
  }
  close() {
    this.engine.close();
  }
}

const last_of = (list) => list[list.length - 1];
const file_of = ({rule, dk, learning_rate, seed}, bytes, when = "") =>
    new File([bytes], `recall-${rule}-dk${dk}-lr${learning_rate}-seed${seed}${when}.safetensors`, {type: "application/octet-stream"});

/// "1/√d_k has learned it: 100 % of held-out answers are right; under no scaling 17 %, under 1/d_k 100 %."
function training_words(data) {
  const names = {none: "no scaling", sqrt_dk: "1/√d_k", dk: "1/d_k"};
  const ends = data.rules.map((r) => ({name: names[r.rule] || r.rule, right: last_of(r.runs[0].evaluations.accuracy), outcome: r.runs[0].outcome}))
                   .filter((end) => isNumber(end.right));
  if (!ends.length) return "";
  const listed = (list) => (list.length > 1 ? `${list.slice(0, -1).join(", ")} and ${last_of(list)}` : list[0]);
  const learned = ends.filter((e) => e.right >= kLearned), not = ends.filter((e) => e.right < kLearned);
  const they = (list, words) => (list.length ? `${listed(list.map((e) => e.name))} ${list.length > 1 ? "have" : "has"} ${words}` : "");
  const claim = [they(learned, "learned it"), they(not, learned.length ? "not" : "not learned it")].filter(Boolean).join(", ");
  const step = d3.max(data.rules, (r) => last_of(r.runs[0].evaluations.step) || 0);
  return `${claim} after ${counted(step, "step")}: held-out answers right are ${listed(ends.map((e) => `${percent(e.right)} under ${e.name}`))}.`.replace(/^./, (c) => c.toUpperCase());
}

site_part({
  id: "train",
  title: "Train it here",
  defaults: {
    rate: 0.01,
    dk: 64,
    steps: 400,
    seed: 1,
    above: "accuracy",
    beneath: "entropy",
    off: [],
    heads_off: [],
    sweep_off: []
  },
  valid: {seed: Number.isInteger, steps: (n) => Number.isInteger(n) && n > 0},
  make(panel_node, state) {
    const {values} = state;
    const data = {experiment: "train", task: "recall", measure: "accuracy", steps: values.steps, learning_rates: [values.rate], rules: []};
    let runs = [], mode = "fresh";  // fresh, running, stopping, stopped, done
    const settings_of = (rule) => ({rule, dk: values.dk, learning_rate: values.rate, seed: values.seed + 1, steps: values.steps});  // as the command counts seeds

    function reset() {
      runs.forEach((run) => run.close());
      data.steps = values.steps;
      data.learning_rates = [values.rate];
      data.rules.splice(0, Infinity, ...kTrainRules.map((rule) => ({rule, dk: values.dk, runs: [empty_run(values.seed + 1)], tuning: []})));
      note(data, "/train");
      runs = data.rules.map(({rule, runs: [log]}) => new TrainingRun(settings_of(rule), log));
      mode = "fresh";
    }
    reset();

    // What is drawn ---------------------------------------------------------------------------------------------------------

    const curves = with_saving(training_curves(data, {coming: true}), {name: "train-curves", title: "Training curves", numbers: () => curve_numbers()});
    const traces = with_saving(head_traces(data, kRecallKeys), {name: "train-heads", title: "What each head did", numbers: () => head_numbers()});
    in_address(state, {menus: {Above: "above", Beneath: "beneath"}, off: "off"})(curves);
    in_address(state, {off: "heads_off"})(traces);
    const curve_numbers = () => ({
      columns: ["rule", "seed", "learning_rate", "step", ...kStepColumns, ...kHeadColumns],
      rows: data.rules.flatMap((r) => r.runs[0].steps.step.map((step, j) => [
        r.rule, r.runs[0].seed, data.learning_rates[0], step, ...[...kStepColumns, ...kHeadColumns].map((name) => r.runs[0].steps[name][j])]))
    });
    const head_numbers = () => ({
      columns: ["rule", "layer", "head", "step", ...kHeadColumns],
      rows: data.rules.flatMap((r) => r.runs[0].steps.heads.flatMap((head) => r.runs[0].steps.step.map((step, j) => [
        r.rule, head.layer, head.head, step, ...kHeadColumns.map((name) => head[name][j])])))
    });

    const sentence = el("p", {class: "says"}, untold()), refusal = el("p", {class: "refused", role: "alert"}), status = el("p", {class: "note", role: "status"});
    const main_button = el("button", {type: "button", class: "plain-button strong-button"}, "Train");
    const again = el("button", {type: "button", class: "plain-button", hidden: ""}, "Start again");
    const command = el("code", {tabindex: 0});
    const cards = el("div", {class: "run-cards"});
    let painted = -Infinity, began = 0, steps_before = 0;

    function draw() {
      painted = performance.now();
      curves.redraw();
      traces.redraw();
      tell();
    }
    /// While answers come in: not for each of them.
    function draw_now_and_then() {
      if (performance.now() - painted >= 250) draw();
    }
    function tell() {
      const done_steps = d3.sum(runs, (run) => run.log.steps.step.length), all = runs.length * data.steps;
      const speed = (done_steps - steps_before) / Math.max(1e-3, (performance.now() - began) / 1000);
      main_button.textContent = {fresh: "Train", running: "Stop", stopping: "Stopping…", stopped: "Go on", done: "Train anew"}[mode];
      again.hidden = mode !== "stopped";
      status.textContent = mode === "running" && done_steps > steps_before ?
          `Step ${d3.max(runs, (run) => run.log.steps.step.length)} of ${data.steps}; about ${Math.ceil((all - done_steps) / speed)} s to go.` :
          mode === "stopped" ? `Stopped at step ${d3.max(runs, (run) => run.log.steps.step.length)}.` :
          mode === "done" ? "Done." : "";
      const words = training_words(data);
      if (words && sentence.textContent !== words) {
        keep_height(sentence, () => sentence.replaceChildren(...el("span", {}, words).childNodes));
        if (mode === "done") say_soon(words);
      }
      panel_node.dataset.mode = mode;
      panel_node.dataset.steps = String(d3.min(runs, (run) => run.log.steps.step.length));
      for (const run of runs) run.card.follow();
    }
    function failed(error) {
      if (error.name === "AbortError") return;
      if (mode === "running" || mode === "stopping") mode = "stopped";
      say_why(refusal, error);
    }

    // Start, stop, go on ----------------------------------------------------------------------------------------------------

    async function go() {
      mode = "running";
      refusal.textContent = "";
      began = performance.now();
      steps_before = d3.sum(runs, (run) => run.log.steps.step.length);
      const mine = runs;
      tell();
      try {
        await Promise.all(mine.map(async (run) => {
          if (run.id === null) await run.begin();
          await run.advance((one) => {
            if (one.log.steps.heads.length === 0 || !pointers.has(one.log.steps.heads[0])) note(data, "/train");
            draw_now_and_then();
          }, () => mode !== "running" || runs !== mine);
        }));
        if (runs !== mine) return;
        mode = mine.every((run) => run.done) ? "done" : "stopped";
      } catch (error) {
        if (runs === mine) failed(error);
      } finally {
        draw();
      }
    }
    main_button.addEventListener("click", () => {
      if (mode === "stopping") return;  // until the workers have answered: a second start would make two of each
      if (mode === "running") {
        mode = "stopping";
        tell();
      } else {
        if (mode === "done") start_over();
        go();
      }
    });
    function start_over() {
      reset();
      make_cards();
      sentence.replaceChildren(...untold());
      draw();
    }
    again.addEventListener("click", () => {
      start_over();
      go();
    });

    // A card for each rule: how far it is, its weights as a file, and to the audit ------------------------------------------------

    function make_cards() {
      cards.replaceChildren(...runs.map((run) => {
        const told = el("p", {class: "note"}), {rule} = run.settings;
        const save = el("button", {type: "button", class: "plain-button", "aria-label": `Download the model trained under ${rule}`}, "Download");
        const audit = el("button", {type: "button", class: "plain-button", "aria-label": `Audit the model trained under ${rule}`}, "Audit it\u00a0→");
        save.addEventListener("click", async () => {
          const file = file_of(run.settings, await run.weights());
          download(file.name, file.type, file);
        });
        audit.addEventListener("click", async () => {
          const file = file_of(run.settings, await run.weights()), before = run.first && file_of(run.settings, run.first, "-untrained");
          const step = last_of(run.log.steps.step);
          site_open("audit", {sample: false}, {file, before, words: `trained here under ${rule} for ${counted(step, "step")}`});
        });
        run.card = {
          follow() {
            const {evaluations, steps, outcome} = run.log;
            save.disabled = audit.disabled = !steps.step.length;
            told.replaceChildren(...el("span", {}, outcome === "diverged" ? "Diverged: " : "", evaluations.step.length ? [put(percent, evaluations, "accuracy", evaluations.step.length - 1), " right, "] : "",
                                       steps.step.length ? ["loss ", put(digits(3), steps, "loss", steps.step.length - 1), " at step ", put(exact, steps, "step", steps.step.length - 1)] : "not begun").childNodes);
          }
        };
        return el("div", {class: "run-card"}, el("h3", {}, key_of(style_of(rule)), el("span", {}, style_of(rule).label)), told, el("div", {class: "row-of-buttons"}, save, audit));
      }));
      runs.forEach((run) => run.card.follow());
    }

    // A checkpoint of another day -----------------------------------------------------------------------------------------------

    const file_id = control_id(), file_box = el("input", {type: "file", id: file_id, accept: ".safetensors"});
    file_box.addEventListener("change", async () => {
      if (!file_box.files.length) return;
      refusal.textContent = "";
      try {
        const found = await TrainingRun.resumed(file_box.files[0]), {rule, dk, learning_rate, seed, steps} = found.settings;
        const place = kTrainRules.indexOf(rule);
        if (place < 0) throw new EngineError(`this run was trained under ${rule}, which is none of the three here`);
        state.set({rate: learning_rate, dk, steps, seed: seed - 1});
        start_over();
        runs[place].close();
        runs[place] = found;
        data.rules[place].runs[0] = found.log;
        note(data, "/train");
        mode = found.done ? "done" : "stopped";
        make_cards();
        draw();
      } catch (error) {
        failed(error);
      }
      file_box.value = "";
    });

    // The sweep ----------------------------------------------------------------------------------------------------------------

    const swept = note({rules: kTrainRules.map((rule) => ({rule, dk: values.dk, tuning: []}))}, "/train/sweep");
    const sweep_chart = with_saving(sweep_figure(swept.rules, kTrainRates), {
      name: "train-sweep", title: "Every learning rate under every rule",
      numbers: () => ({columns: ["rule", "learning_rate", "outcome", "loss", "accuracy"], rows: swept.rules.flatMap((r) => r.tuning.map((t) => [r.rule, t.learning_rate, t.outcome, t.loss, t.accuracy]))})
    });
    in_address(state, {off: "sweep_off"})(sweep_chart);
    const sweep_said = el("p", {class: "says"}, "Not tried yet: fifteen runs, which take a while."), sweep_button = el("button", {type: "button", class: "plain-button strong-button"}, "Try all learning rates");
    const sweep_bar = el("progress", {max: 1, value: 0, "aria-label": "Runs of the sweep"}), sweep_status = el("p", {class: "note", role: "status"}), sweep_command = el("code", {tabindex: 0});
    const sweep_refusal = el("p", {class: "refused", role: "alert"});
    let sweeping = null;  // {stop}

    async function sweep() {
      const mine = {stop: false}, jobs = kTrainRates.flatMap((learning_rate) => swept.rules.map((r) => ({r, learning_rate}))), all = jobs.length;
      // Rates in the middle first: that is where rules differ.
      jobs.sort((a, b) => Math.abs(Math.log(a.learning_rate / 0.003)) - Math.abs(Math.log(b.learning_rate / 0.003)));
      sweeping = mine;
      swept.rules.forEach((r) => {
        r.dk = values.dk;
        r.tuning.splice(0);
      });
      sweep_button.textContent = "Stop";
      sweep_refusal.textContent = "";
      sweep_bar.value = 0;
      let done = 0, steps = 0;
      const follow = () => {
        sweep_status.textContent = `${done} of ${all} runs.`;
        sweep_chart.redraw();
        const words = sweep_words(swept.rules);
        if (words) sweep_said.replaceChildren(...el("span", {}, words).childNodes);
        panel_node.dataset.swept = String(done);
      };
      const values_then = {...values};
      const work = async () => {
        for (let job = jobs.shift(); job && !mine.stop; job = jobs.shift()) {
          const log = empty_run(values_then.seed), run = new TrainingRun({rule: job.r.rule, dk: values_then.dk, learning_rate: job.learning_rate, seed: values_then.seed, steps: values_then.steps}, log);
          try {
            await run.begin();
            await run.advance(() => {
              steps += log.steps.step.length - (run.counted || 0);
              run.counted = log.steps.step.length;
              sweep_bar.value = steps / (all * values_then.steps);
            }, () => mine.stop);
            if (mine.stop) return;
            job.r.tuning.push({learning_rate: job.learning_rate, outcome: log.outcome, loss: last_of(log.evaluations.loss), accuracy: last_of(log.evaluations.accuracy)});
            note(swept, "/train/sweep");
            ++done;
            follow();
          } finally {
            run.close();
          }
        }
      };
      follow();
      try {
        await Promise.all(d3.range(Math.max(1, Math.min(3, (navigator.hardwareConcurrency || 2)))).map(work));
      } catch (error) {
        mine.stop = true;
        say_why(sweep_refusal, error);
      } finally {
        sweeping = null;
        sweep_button.textContent = "Try all learning rates";
        sweep_status.textContent = mine.stop ? `Stopped after ${done} of ${all} runs.` : `All ${all} runs are done.`;
        if (!mine.stop) say_soon(sweep_words(swept.rules));
      }
    }
    sweep_button.addEventListener("click", () => {
      if (sweeping) sweeping.stop = true;
      else sweep();
    });

    // All of it ----------------------------------------------------------------------------------------------------------------

    function follow_settings() {
      const {rate, dk, steps, seed} = values;
      command.replaceChildren(el("span", {"data-at": "/train"}, command_of("train", {dk, lr: rate, steps, seeds: 1, ...(seed === 1 ? {} : {seed})})));
      sweep_command.replaceChildren(el("span", {"data-at": "/train/sweep"}, command_of("train", {dk, steps, seeds: 1, ...(seed === 1 ? {} : {seed})})));
    }
    state.on((changed) => {
      if (!["rate", "dk", "steps", "seed"].some((name) => changed.has(name))) return;  // a chart's own choice
      follow_settings();
      if (sweeping) sweeping.stop = true;
      start_over();
    });
    const how = (code, more = null) => el("details", {class: "how"}, el("summary", {}, "The same numbers in a terminal"), code, more);
    panel_node.append(
        el("div", {class: "part-head"}, el("h2", {}, "Train it here"),
           el("p", {}, "Does the divisor matter? The same small transformer, from the same weights on the same batches, under three rules at once: it has to find a key among others and name its value. Freezing at the start blocks learning; sharpness at the end is learned.")),
        el("div", {class: "live", "data-live": "train"},
           el("div", {class: "control-grid"},
              slider({state, name: "rate", label: "Learning rate", values: kTrainRates, format: exact, ticks: kTrainRates}),
              slider({state, name: "dk", label: "d_k", values: [4, 8, 16, 32, 64, 128, 256], format: whole, ticks: [4, 16, 64, 256]}),
              slider({state, name: "steps", label: "Steps", values: [50, 100, 200, 300, 400, 600], format: whole, ticks: [50, 200, 400, 600]}),
              number_box({state, name: "seed", label: "Seed", min: 1, max: 1e9})),
           el("div", {class: "row-of-buttons"}, main_button, again, status), refusal, sentence, curves, traces, cards,
           el("div", {class: "row-of-buttons take-up"}, el("label", {for: file_id}, "Go on from a checkpoint that was downloaded here"), file_box),
           how(command, el("p", {class: "note"}, "At first the losses agree with the command's to six digits. Every step magnifies the difference in rounding, so that at high rates they part from the command's after some tens of steps."))),
        el("div", {class: "live", "data-live": "train/sweep"},
           el("h3", {}, "Every learning rate"),
           el("p", {class: "note"}, "Comparing at one rate is unfair: each rule has a best one of its own. Here each rule is trained at five rates, for as many steps as above."),
           el("div", {class: "row-of-buttons"}, sweep_button, sweep_status), sweep_bar, sweep_refusal, sweep_said, sweep_chart, how(sweep_command)));
    make_cards();
    follow_settings();
    tell();
    return {shown: () => fit_charts(panel_node)};
  },
});
