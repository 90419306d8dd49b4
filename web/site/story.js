// The story: why the scores of attention are divided by √d_k, in eight steps, each a claim, a figure to try it on, and
// a sentence that says what the figure shows.

const story_dk = doublings(1, 512), story_ticks = [1, 4, 16, 64, 256];
const dk_slider = (state, more) => slider({
  state,
  name: "dk",
  label: "d_k",
  hint: "length of q and k",
  values: story_dk,
  ticks: story_ticks,
  format: whole,
  ...more
});
const keys_slider = (state) => slider({
  state,
  name: "keys",
  label: "n",
  hint: "number of keys",
  values: [64, 128, 256, 512, 1024],
  ticks: [64, 256, 1024],
  format: whole
});
const dividers = [
  {id: "none", label: "nothing", style: style_of("none")}, {id: "sqrt_dk", label: "√d_k", style: style_of("sqrt_dk")},
  {id: "dk", label: "d_k", style: style_of("dk")}
];
const divide_by = (state) => segments({state, name: "divide", label: "Divide the scores by", options: dividers});
const term = (words) => el("dfn", {}, words);
const para = (...words) => el("p", {}, ...words);
const paper = (number_of, words) => outward(`https://arxiv.org/abs/${number_of}`, words);

/// claim: the heading. told: what stands beside the figure. figure(state): the figure.
const story_steps = [
  {
    short: "a sum",
    claim: "A dot product adds up d_k terms",
    told: () =>
        [para(
             "The score of a query q with a key k, two vectors of d_k numbers each, is their dot product:"),
         formula_line("dot_product"),
         para(
             "Before training the numbers are as good as random: of mean 0 and of ", term("variance"),
             " 1, which is the mean squared distance from the mean. Some terms are positive, some negative, and " +
                 "the sum wanders: a random walk of d_k steps."),
],
    figure: sum_figure,
  },
  {
    short: "its variance",
    claim: "Its variance is d_k",
    told: () =>
        [para(
             "How far does it wander? Square a sum of three terms, and nine products come out. The three squares " +
             "have mean 1. The six mixed ones have mean 0, since either factor may have either sign."),
         para("For d_k terms there are d_k squares and d_k² − d_k mixed products:"),
         formula_line("square"),
         para(
             "The variance is d_k; so the spread σ of the scores, its root, is √d_k. How the numbers are " +
             "distributed does not matter."),
],
    figure: variance_figure,
  },
  {
    short: "softmax",
    claim: "Softmax of such scores sees one key",
    told: () =>
        [para("Softmax turns the scores of one query with n keys into weights that add up to 1:"),
         formula_line("softmax"),
         para(
             "The exponential decides: a score that is ahead by 5 gets e⁵, about 148 times, the weight. " +
                 "How many keys still count is the number of ",
             term("effective keys"), ": that many equal weights would be just as undecided."),
         formula_line("effective_keys"),
         para(
             "There is a limit, known from the physics of spin glasses (",
             outward("https://doi.org/10.1103/PhysRevB.24.2613", "Derrida 1981"),
             "): once the spread passes the ", term("critical spread"),
             " σ_c, a few keys hold nearly all the weight, however many there are, and the row is frozen. Below it " +
                 "we call the row ",
             term("soft"), "."),
         formula_line("critical"),
],
    figure: softmax_figure,
  },
  {
    short: "the way back",
    claim: "Frozen rows lose their gradient",
    told: () =>
        [para(
             "Learning sends a gradient back from the weights to the scores. On its way it is multiplied by " +
                 "softmax's derivative, the ",
             term("Jacobian"), " J:"),
         formula_line("jacobian"),
         para(
             "Its trace ", term("tr J"),
             " says how much gets through: 0 where one key has all the weight, nearly 1 where many share it. " +
                 "Below 0.01 we call a row ",
             term("shut"), "."),
         para(
             "The mean does not vanish: where two keys are level, even a frozen row passes on a lot. What " +
             "vanishes is the tail, and then, as d_k grows, row after row, by orders of magnitude."),
],
    figure: backward_figure,
    after: trained_remark,
  },
  {
    short: "not d_k",
    claim: "Dividing by d_k starves the gradient, too",
    told: () =>
        [para(
             "Why not divide by d_k and be safe? Then the spread is 1/√d_k, next to nothing: all weights are " +
             "nearly equal, attention takes the plain mean of everything, and what the keys hold makes no " +
             "difference."),
         para(
             "The gradient gets through softmax, but on its way to q and k it is divided by d_k, as the scores were, " +
             "and shrinks as d_k grows."),
         para(
             "An optimiser that rescales gradients can make up for it, given a learning rate of its own: see ",
             el("a", {href: "#train"}, "Train it here"), ". And muP (", paper("2203.03466", "Yang et al. 2022"),
             ") divides by d_k on purpose, for the other end of training: once q and k point the same way, their " +
                 "dot product grows like d_k, not like √d_k."),
],
    figure: flat_figure,
  },
  {
    short: "√d_k",
    claim: "Only √d_k keeps the spread at 1",
    told: () =>
        [para("Dividing a number by c divides its variance by c². The variance of q·k is d_k, so"),
         formula_line("divided"),
         para(
             "With that the spread is 1 at any d_k, well below σ_c for any number of keys that matters: soft " +
                 "enough to learn, uneven enough to have something to learn from. This is the scale of ",
             paper("1706.03762", "Vaswani et al. 2017"), "."),
         para("Try other powers of d_k: every one of them climbs or sinks."),
],
    figure: power_figure,
  },
  {
    short: "when it is wrong",
    claim: "√d_k is right for unit variance only",
    told: () =>
        [para(
             "The law of step 2 took three things for granted. If the components' ", term("standard deviations"),
             " (roots of their variances) are σ_q and σ_k, the spread is √d_k·σ_q·σ_k: the ", term("initialisation"),
             ", how weights are drawn before training, decides. Xavier's on one packed matrix for Q, K and V " +
                 "leaves half of what is wanted, N(0, 0.02) at this width less than a third."),
         para(
             "If the components have a mean, or are ", term("correlated"),
             " with each other, then mixed products count, too, and there are d_k² of them: the variance grows " +
                 "like d_k², and no root tames it."),
         formula_line("variance_general"),
         para(el("small", {}, "with a(x) = d_k + d_k(d_k − 1)x, for a mean μ and a correlation ρ.")),
],
    figure: wrong_figure,
  },
  {
    short: "what else",
    claim: "What else keeps scores in range",
    told: () =>
        [para(
             "A divisor is fixed; weights are not. Other rules answer what training does to the spread: ",
             term("QK-norm"), " normalises q and k themselves (", paper("2010.04245", "Henry et al. 2020"), ", ",
             paper("2302.05442", "Dehghani et al. 2023"), "), a ", term("soft-cap"), " bends large scores (",
             paper("2408.00118", "Gemma 2"), "), ", term("QK-clip"), " shrinks weights whose scores got too large (",
             paper("2507.20534", "Kimi K2"), ")."),
         para(
             "And under one divisor for all lengths, attention spreads thinner as the context grows; ", term("SSMax"), " (",
             paper("2501.19399", "Nakanishi 2025"), ") lets the scores grow with ln n."),
         para(
             "All but QK-clip, which is a part of training, can be tried in the ",
             el("a", {href: "#playground"}, "playground"), ", or on arrays of ", el("a", {href: "#own"}, "your own"),
             "."),
],
    figure: others_figure,
    after: rules_table,
  },
];

site_part({
  id: "story",
  title: "The story",
  defaults: {
    step: 0,
    dk: 64,
    components: "normal",
    divide: "none",
    keys: 256,
    power: 0.5,
    spread: 1,
    mean: 0,
    correlation: 0,
    others_keys: 256,
    others_spread: 1,
    others_show: other_measures[0].id
  },
  valid: {
    components: one_of(law_components.map((c) => c.id)),
    divide: one_of(dividers.map((d) => d.id)),
    others_show: one_of(other_measures.map((m) => m.id))
  },
  make(panel_node, state) {
    const opening = opening_picture(state);
    const lead =
        el("div", {class: "lead"},
           para(
               "Attention compares a ", term("query"), " with every ", term("key"), ", vectors of d_k numbers: a ",
               term("score"), " is their dot product, and ", term("softmax"), " turns the scores of one query, a ",
               term("row"), ", into ", term("weights"), " that add up to 1."),
           para(
               "Such a sum of d_k terms is about √d_k large, and softmax of scores that large puts nearly all the " +
                   "weight on one key: the row is ",
               term("frozen"), ", and hardly any ", term("gradient"), ", from which training learns, comes back."),
           para(
               "Divided by √d_k the scores keep a ", term("spread"),
               " of 1, their typical distance from the mean, whatever d_k is; move the slider and see."));
    const contents =
        el("ol", {class: "eight"},
           story_steps.map(
               (s, k) =>
                   el("li", {}, el("a", {href: `#story?step=${k + 1}`, "data-step": k + 1}, el("span", {}, s.claim)))));
    const sections = story_steps.map((step, k) => {
      const id = `step-${k + 1}`;
      const figure = step.figure(state);
      return el(
          "section", {class: "step", id, "aria-labelledby": `${id}-title`},
          el("div", {class: "told"},
             el("h2", {id: `${id}-title`, tabindex: -1}, el("span", {class: "place"}, String(k + 1)),
                el("span", {}, step.claim)),
             step.told()),
          el("div", {class: "shown"}, figure.node), step.after ? el("div", {class: "after"}, step.after(state)) : null);
    });
    panel_node.append(
        el("div", {class: "opening-story"}, lead, opening.node,
           el("nav", {class: "eight-steps", "aria-labelledby": "eight-title"},
              el("h2", {id: "eight-title"}, "The argument in eight steps"), contents)),
        ...sections);

    const go = (step) => {
      const section = sections[step - 1];
      if (section) section.scrollIntoView({behavior: calm() ? "auto" : "smooth", block: "start"});
    };
    for (const link of contents.querySelectorAll("a"))
      link.addEventListener("click", (event) => {
        event.preventDefault();
        go(Number(link.dataset.step));
        sections[Number(link.dataset.step) - 1].querySelector("h2").focus({preventScroll: true});
      });
    // Where one is goes into the URL, so that a link opens there.
    let settled = false;
    const seen = new IntersectionObserver((entries) => {
      for (const entry of entries)
        if (entry.isIntersecting && settled)
          state.set({step: entry.target === opening.node ? 0 : sections.indexOf(entry.target) + 1});
    }, {rootMargin: "-35% 0px -60% 0px"});
    [opening.node, ...sections].forEach((node) => seen.observe(node));
    return {
      shown() {
        settled = false;
        if (state.values.step)
          requestAnimationFrame(
              () => sections[state.values.step - 1] &&
                  sections[state.values.step - 1].scrollIntoView({block: "start", behavior: "instant"}));
        setTimeout(() => (settled = true), 700);
      }
    };
  },
});
