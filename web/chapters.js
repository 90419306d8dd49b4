// Results as sections of a page: one for every chapter, the rules, the contents beside them, and what they were made with.

/// An experiment that was stopped before anything was finished has nothing to draw; one that cannot be drawn must not take the
/// others along.
function part_of(data) {
  if (!Object.hasOwn(experiments, data.experiment)) return {below: []};
  if (["rows", "points", "rules"].some((list) => Array.isArray(data[list]) && !data[list].length)) return {below: []};
  try {
    return experiments[data.experiment](data);
  } catch (error) {
    reportError(error);
    return {below: []};
  }
}

function section_of(chapter, place, beside = null) {
  const data = chapter.data;
  const part = part_of(data);
  const more = Array.isArray(data.histograms) && data.histograms.length ? histograms(data) : null;
  const formula = part.formula || (Object.hasOwn(formulas, data.experiment) ? data.experiment : null);
  const id = `experiment-${place}`;
  const node =
      el("section",
         {id, "aria-labelledby": `${id}-title`, class: part.wide ? "wide" : undefined, "data-experiment": data.experiment});
  const charts =
      el("div", {class: "charts"}, more ? more.figure : null,
         part.figure ||
             el("p", {class: "note"},
                "There is nothing to draw here; what there is of this experiment is in the JSON inside this file."));
  const conclusion =
      el("div", {class: "conclusion"}, el("p", {}, ref(chapter, "conclusion")),
         chapter.complete === false ? el("p", {class: "unfinished"}, "Interrupted: this is what was finished.") : null, beside);
  node.append(
      el("h2", {id: `${id}-title`}, el("span", {class: "place"}, `${place}. `), ref(chapter, "title")),
      el("p", {class: "question"}, ref(chapter, "lead")), conclusion,
      el("div", {class: formula ? "body" : "body alone"}, charts, formula ? el("div", {class: "aside"}, formula_box(formula)) : null),
      ...part.below.filter(Boolean), ...(more ? more.below : []));
  // Two chapters may be of one experiment: their tables are told apart by ear, too.
  for (const region of node.querySelectorAll('[role="region"]'))
    region.setAttribute("aria-label", `${place}. ${region.getAttribute("aria-label")}`);
  return node;
}

const outward = (href, ...words) => el("a", {href, target: "_blank", rel: "noopener noreferrer"}, ...words);

/// Text with what it cites as links.
function linked(text) {
  const out = [];
  let from = 0;
  for (const found of text.matchAll(/arXiv (\d{4}\.\d{4,5})|kexue\.fm\/archives\/\d+/g)) {
    out.push(text.slice(from, found.index));
    out.push(outward(found[1] ? `https://arxiv.org/abs/${found[1]}` : `https://${found[0]}`, found[0]));
    from = found.index + found[0].length;
  }
  return [...out, text.slice(from)];
}

/// unit_variance(sigma_q, sigma_k), which a narrow column may break after an underscore or a bracket.
const breakable = (name) => name.split(/(?<=[_(])/).flatMap((part, i) => (i ? [el("wbr"), part] : [part]));

/// The laboratory's rules, each with its formula and who proposed it.
function rules_list(caption, rules) {
  const with_content = (node, content) => (node.replaceChildren(...el("span", {}, content).childNodes), node);
  const at = (r, key, make) => with_content(put(String, r, key), make(r[key]));
  const left = (title) => ({title, left: true, free: true});
  return el("div", {class: "rules-list"}, table(
      caption, [left("rule"), left("formula"), left("source")],
      rules.map((r) => [
        el("span", {}, at(r, "name", breakable), at(r, "parameters", breakable)), ref(r, "formula"), at(r, "source", linked)
      ])));
}

function rules_section(rules) {
  const node = el("section", {id: "rules", "aria-labelledby": "rules-title"});
  node.append(
      el("h2", {id: "rules-title"}, "The rules there are"),
      el("p", {class: "question"}, "What sets or bounds the scores, and who proposed it?"),
      rules_list("Rules, formulas and sources", rules));
  return node;
}

function contents_of(sections) {
  const links = sections.map((s) => el("a", {href: `#${s.id}`}, s.querySelector("h2").textContent));
  const watch = new IntersectionObserver((entries) => {
    for (const entry of entries) {
      const link = links[sections.indexOf(entry.target)];
      if (entry.isIntersecting)
        link.setAttribute("aria-current", "true");
      else
        link.removeAttribute("aria-current");
    }
  }, {rootMargin: "-30% 0px -60% 0px"});
  sections.forEach((s) => watch.observe(s));
  return el("ol", {}, links.map((link) => el("li", {}, link)));
}

/// Every chapter and the rules, in order; `beside(chapter)` → a node to stand under its conclusion, or nothing.
function sections_of(results, beside = () => null) {
  const sections = results.chapters.map((chapter, k) => section_of(chapter, k + 1, beside(chapter)));
  if (Array.isArray(results.rules) && results.rules.length) sections.push(rules_section(results.rules));
  return sections;
}

/// "rootdk 0.2.0 · seed 1 · …": what they were made with, and what is missing.
function made_with(results) {
  const machine = results.machine || {};
  const facts =
      [
        ["rootdk ", ref(results, "rootdk")], ["seed ", put(exact, results, "seed")], ["", ref(machine, "processor")],
        ["threads ", put(exact, results, "threads")], ["", ref(machine, "compiler")]
      ]
          .filter(
              ([, fact]) => (fact instanceof Node ? fact.textContent : fact.value) !== undefined &&
                  (fact instanceof Node ? fact.textContent !== "" : true));
  return [
    el("span", {}, facts.flatMap(([name, fact], k) => [k ? " · " : "", name, fact])),
    results.complete === false ?
        el("span", {class: "unfinished"}, " · interrupted: not all experiments are here") : null,
    results.quick === true ? el("span", {}, " · quick: small sizes, wide intervals") : null
  ].filter(Boolean);
}
