// The tour: what `rootdk tour` measured elsewhere, where its page has that inside. Each chapter leads to the part of the page where
// the same can be tried with other numbers.

/// By experiment: what to say, the part, and what is set there.
const tour_doors = {
  explain: (d) => ["Work it through with other scores", "own", {text: d.raw_scores.join(", "), dk: d.dk, rules: d.rules.map((r) => r.rule)}],
  variance: (d) => d.mean || d.correlation ?
      ["Move the mean and the correlation", "story", {step: 7, mean: d.mean, correlation: d.correlation}] :
      ["Move d_k and watch the variance", "story", {step: 2}],
  phase: () => ["Compute the map here", "phase", {}],
  gradient: () => ["Move d_k and watch the gradient", "story", {step: 4}],
  train: () => ["Train it here", "train", {}],
  init: () => ["Move the spread of q and k", "story", {step: 7}],
  whatif: () => ["Try rules on a random head", "playground", {}],
};

function tour_door({data}) {
  if (!Object.hasOwn(tour_doors, data.experiment)) return null;
  const [words, part, values] = tour_doors[data.experiment](data);
  const link = el("a", {href: `#${part}`, class: "door"}, words, "\u00a0→");
  link.addEventListener("click", (event) => {
    if (event.metaKey || event.ctrlKey || event.shiftKey) return;
    event.preventDefault();
    site_open(part, values);
  });
  return el("p", {}, link);
}

if (Array.isArray(results.chapters))
  site_part({
    id: "tour",
    title: "The tour",
    defaults: {chapter: 0},
    make(panel_node, state) {
      const sections = sections_of(results, tour_door);
      const contents = contents_of(sections);
      sections.forEach((section, k) => with_saving_all(section, {name: `tour-${k + 1}`, title: section.querySelector("h2").textContent}));
      panel_node.append(
          el("div", {class: "part-head"}, el("h2", {}, "The tour"),
             el("p", {},
                "What the command measured, beside what was predicted, and what follows. These numbers were not " +
                    "computed here: they come from the JSON inside this file. The other parts of the page compute their own."),
             el("p", {class: "made"}, made_with(results))),
          el("div", {class: "page"}, el("nav", {class: "contents", "aria-label": "Chapters of the tour"}, contents),
             el("div", {}, sections)));
      const go = (k, behavior) => sections[k - 1] && sections[k - 1].scrollIntoView({behavior, block: "start"});
      contents.querySelectorAll("a").forEach((link, k) => {
        link.href = `#tour?chapter=${k + 1}`;
        link.addEventListener("click", (event) => {
          if (event.metaKey || event.ctrlKey || event.shiftKey) return;
          event.preventDefault();
          state.set({chapter: k + 1});
          go(k + 1, calm() ? "auto" : "smooth");
          sections[k].tabIndex = -1;
          sections[k].focus({preventScroll: true});
        });
      });
      return {shown: () => requestAnimationFrame(() => go(state.values.chapter, "instant"))};
    },
  });
