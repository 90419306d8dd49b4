// Formulas in MathML. Constants of the page: nothing of the JSON comes in here.

const formulas = (() => {
  const i = (x) => `<mi>${x}</mi>`, up = (x) => `<mi mathvariant="normal">${x}</mi>`, n = (x) => `<mn>${x}</mn>`,
        o = (x) => `<mo stretchy="false">${x}</mo>`;
  const around = (x) => `<mrow><mo>(</mo>${x}<mo>)</mo></mrow>`;  // grows with what it holds
  const row = (...parts) => `<mrow>${parts.join("")}</mrow>`;
  const low = (a, b) => `<msub>${a}${b}</msub>`, high = (a, b) => `<msup>${a}${b}</msup>`,
        both = (a, b, c) => `<msubsup>${a}${b}${c}</msubsup>`;
  const over = (a, b) => `<mfrac>${a}${b}</mfrac>`, root = (a) => `<msqrt>${a}</msqrt>`,
        sum = (below) => `<munder>${o("∑")}${below}</munder>`;
  const dk = low(i("d"), i("k")), two = n(2);
  const squared = (a) => high(a, two);

  /// [spoken, MathML, what it means]
  return {
    explain: [
      [
        "p i is e to the score s i over the sum of such",
        row(low(i("p"), i("i")), o("="),
            over(high(i("e"), low(i("s"), i("i"))), row(sum(i("j")), high(i("e"), low(i("s"), i("j"))))), o(","),
            "<mspace width='.6em'/>", low(i("s"), i("i")), o("="), i("c"), o("·"), i("q"), o("·"), low(i("k"), i("i"))),
        "The weights, for a scale c: 1, 1/√d_k or 1/d_k."
      ],
      [
        "the derivative of p i by s j is p i times delta i j minus p j",
        row(over(row(o("∂"), low(i("p"), i("i"))), row(o("∂"), low(i("s"), i("j")))), o("="), low(i("p"), i("i")), o("("),
            low(i("δ"), i("ij")), o("−"), low(i("p"), i("j")), o(")")),
        "What a gradient has to pass: nothing gets through a weight of 0 or 1. tr J is the sum of its diagonal."
      ]
    ],
    variance: [
      [
        "the variance of q dot k is the sum of the variances of q i k i, which is d k",
        row(up("Var"), o("("), i("q"), o("·"), i("k"), o(")"), o("="),
            "<munderover><mo>∑</mo><mrow><mi>i</mi><mo>=</mo><mn>1</mn></mrow>" + dk + "</munderover>", up("Var"), o("("),
            low(i("q"), i("i")), low(i("k"), i("i")), o(")"), o("="), dk),
        "Independent components of mean 0 and variance 1."
      ],
      [
        "the variance of q dot k over c is d k over c squared",
        row(up("Var"), around(over(row(i("q"), o("·"), i("k")), i("c"))), o("="), over(dk, squared(i("c")))),
        "It is 1 for c = √d_k and no other."
      ]
    ],
    variance_general: [
      [
        "the general variance with mean mu and correlation rho",
        row(up("Var"), o("("), i("q"), o("·"), i("k"), o(")"), o("="), both(i("σ"), i("q"), two), both(i("σ"), i("k"), two),
            i("a"), o("("), squared(i("ρ")), o(")"), o("+"), squared(i("μ")), o("("), both(i("σ"), i("q"), two), o("+"),
            both(i("σ"), i("k"), two), o(")"), i("a"), o("("), i("ρ"), o(")")),
        ""
      ],
      [
        "a of x is d k plus d k times d k minus one times x",
        row(i("a"), o("("), i("x"), o(")"), o("="), dk, o("+"), dk, o("("), dk, o("−"), n(1), o(")"), i("x")),
        "With means μ and correlation ρ the variance grows like d_k², and √d_k no longer tames it."
      ]
    ],
    phase: [
      [
        "the critical spread sigma c is the root of two log n",
        row(low(i("σ"), i("c")), o("="), root(row(two, i("ln"), "<mspace width='.17em'/>", i("n")))),
        "Scores of a larger spread than this freeze on one of n keys (the random-energy model)."
      ],
      [
        "unscaled, sigma is the root of d k, so it freezes beyond d k equals two log n",
        row(i("σ"), o("="), root(dk), o(">"), low(i("σ"), i("c")), "<mspace width='.5em'/>", o("⇔"), "<mspace width='.5em'/>", dk,
            o(">"), two, i("ln"), "<mspace width='.17em'/>", i("n")),
        "Unscaled attention. With 1/√d_k the spread is 1 at any size."
      ]
    ],
    gradient: [
      [
        "d S is J times d P, J is diag p minus p p transposed",
        row(up("d"), i("S"), o("="), i("J"), up("d"), i("P"), o(","), "<mspace width='.6em'/>", i("J"), o("="), up("diag"),
            o("("), i("p"), o(")"), o("−"), i("p"), high(i("p"), up("T"))),
        ""
      ],
      [
        "the expected squared length of d S is the expectation of sum p squared minus two sum p cubed plus sum p squared, squared",
        row(up("E"), squared(row(o("‖"), up("d"), i("S"), o("‖"))), o("="), up("E"), o("["), o("∑"), squared(i("p")), o("−"), two,
            o("∑"), high(i("p"), n(3)), o("+"), squared(row(o("("), o("∑"), squared(i("p")), o(")"))), o("]")),
        "For a gradient of unit variance on every weight."
      ]
    ],
    precision: [[
      "signal bits are log two of the spread of p over the error of the stored p",
      row(up("bits"), o("="), low(up("log"), two),
          over(
              row(up("spread of"), "<mspace width='.3em'/>", i("p")),
              row(up("error of the stored"), "<mspace width='.3em'/>", i("p")))),
      "Saturation is softmax's doing and the same in f64; rounding comes on top, and is another matter."
    ]],
    init: [[
      "the spread of q dot k is root d k times sigma q times sigma k",
      row(i("σ"), o("("), i("q"), o("·"), i("k"), o(")"), o("="), root(dk), low(i("σ"), i("q")), low(i("σ"), i("k"))),
      "The divisor for unit variance. It is √d_k only where the projections give q and k unit variance."
    ]],
    whatif: [[
      "o is softmax of f of q k transposed, times v",
      row(i("o"), o("="), up("softmax"), o("("), i("f"), o("("), i("q"), high(i("k"), up("T")), o(")"), o(")"), i("v")),
      "Each rule is another f: a factor, a norm of q and k, or a cap."
    ]],
    bench: [[
      "floating point operations are four times heads times length squared times dim",
      row(up("FLOP"), o("="), n(4), o("·"), up("heads"), o("·"), squared(up("length")), o("·"), up("dim")),
      "Two products of two operations each; half of it under a causal mask."
    ]],
    train: [[
      "the entropy H is minus the sum of p log p",
      row(i("H"), o("="), o("−"), o("∑"), i("p"), i("ln"), "<mspace width='.17em'/>", i("p")),
      "Beneath the curves: how widely attention looks. 0 is a single key."
    ]],
    dot_product: [[
      "q dot k is q one k one plus q two k two and so on, d k terms",
      row(i("q"), o("·"), i("k"), o("="), low(i("q"), n(1)), low(i("k"), n(1)), o("+"), low(i("q"), n(2)), low(i("k"), n(2)), o("+"), o("⋯"), o("+"),
          low(i("q"), dk), low(i("k"), dk)),
      ""
    ]],
    square: [[
      "the mean of q dot k squared is the sum of d k ones and of d k squared minus d k zeros, which is d k",
      row(up("E"), squared(row(o("("), i("q"), o("·"), i("k"), o(")"))), o("="), dk, o("·"), n(1), o("+"),
          o("("), squared(dk), o("−"), dk, o(")"), o("·"), n(0), o("="), dk),
      ""
    ]],
    softmax: [[
      "p i is e to the score s i over the sum of e to the s j",
      row(low(i("p"), i("i")), o("="), over(high(i("e"), low(i("s"), i("i"))), row(sum(i("j")), high(i("e"), low(i("s"), i("j")))))),
      ""
    ]],
    effective_keys: [[
      "effective keys are e to the entropy H, H is minus the sum of p log p",
      row(up("effective keys"), o("="), high(i("e"), i("H")), o(","), "<mspace width='.6em'/>", i("H"), o("="), o("−"), sum(i("i")), low(i("p"), i("i")), i("ln"),
          "<mspace width='.17em'/>", low(i("p"), i("i"))),
      ""
    ]],
    critical: [[
      "the critical spread sigma c is the root of two log n",
      row(low(i("σ"), i("c")), o("="), root(row(two, i("ln"), "<mspace width='.17em'/>", i("n")))),
      ""
    ]],
    jacobian: [[
      "the derivative of p i by s j is p i times delta i j minus p j; trace J is one minus the sum of p squared",
      row(low(i("J"), i("ij")), o("="), over(row(o("∂"), low(i("p"), i("i"))), row(o("∂"), low(i("s"), i("j")))), o("="), low(i("p"), i("i")), o("("), low(i("δ"), i("ij")),
          o("−"), low(i("p"), i("j")), o(")"), o(","), "<mspace width='.6em'/>", up("tr"), "<mspace width='.17em'/>", i("J"), o("="), n(1), o("−"), sum(i("i")),
          both(i("p"), i("i"), two)),
      ""
    ]],
    divided: [[
      "the variance of q dot k over c is d k over c squared, which is one only for c the root of d k",
      row(up("Var"), around(over(row(i("q"), o("·"), i("k")), i("c"))), o("="), over(dk, squared(i("c"))), o("="), n(1), "<mspace width='.5em'/>", o("⇔"),
          "<mspace width='.5em'/>", i("c"), o("="), root(dk)),
      ""
    ]],
    histograms: [
      ["score is c times q dot k", row(i("s"), o("="), i("c"), o("·"), i("q"), o("·"), i("k")), "The same q and k, three scales."]
    ],
  };
})();

/// The first formula of a name alone, for a line of its own in a text.
function formula_line(name) {
  const [spoken, math] = formulas[name][0];
  const holder = el("div", {class: "formula-line"});
  holder.innerHTML = `<math display="block" aria-label="${spoken}">${math}</math>`;
  return holder;
}

function formula_box(name) {
  const box = el("div", {class: "formula", tabindex: 0, role: "group", "aria-label": "Formula"});
  for (const [spoken, math, meaning] of formulas[name] || []) {
    const holder = el("div", {});
    holder.innerHTML = `<math display="block" aria-label="${spoken}">${math}</math>`;
    if (meaning) holder.append(el("p", {}, meaning));
    box.append(holder);
  }
  return box;
}
