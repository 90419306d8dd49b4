// rootdk whatif: a saved q and k under every rule.
#include "arguments.h"
#include "arrays.h"
#include "results.h"
#include "verbs.h"

namespace rootdk::app {

namespace {

struct Options : Common {
  std::string q, k, v, rules;
  bool causal = false;
  PageOption page;
};

int run(const Options& o) {
  Destinations destinations(o.page.force);
  for (const std::string& read : {o.q, o.k, o.v}) destinations.reads(read);
  o.page.check(destinations);
  const Array q = read_array(o.q, Precision::kF32), k = read_array(o.k, Precision::kF32);
  Array v;
  lab::WhatifOptions options;
  options.q = q.view(o.q);
  options.k = k.view(o.k);
  if (!o.v.empty()) {
    v = read_array(o.v, Precision::kF32);
    options.v = v.view(o.v);
  }
  options.causal = o.causal;
  if (!o.rules.empty()) {
    options.treatments.clear();
    for (const std::string& rule : split_list("--rules", o.rules)) options.treatments.push_back(lab::treatment(rule));
  }
  return run_experiment(o, "whatif", [&](const lab::Watch& watch) {
    lab::Whatif found;
    const double seconds = timed([&] { found = lab::try_rules(options, watch); });
    const Heading heading = {"whatif", "A saved q and k under every rule",
                             "What would each rule make of these queries and keys?"};
    o.page.write(o, heading, tell(found), seconds);
    return found;
  });
}

}  // namespace

Verb whatif_verb() {
  const auto o = std::make_shared<Options>();
  return {"whatif", "A saved q and k under every rule, side by side",
          "  rootdk whatif q.npy k.npy v.npy --causal\n"
          "  rootdk whatif q.npy k.npy v.npy --html rules.html\n"
          "  rootdk whatif q.npy k.npy --rules \"sqrt_dk,measured,qk_norm,soft_cap(30)\"",
          [o](OptionList& list) {
            list.argument("q", o->q, "Queries, .npy: [[[batch,] heads,] length, dim]; computed in f32");
            list.argument("k", o->k, "Keys, likewise");
            list.optional_argument("v", o->v, "Values, likewise; then outputs are compared, too");
            list.flag("--causal", o->causal,
                      "A query sees the keys up to its own; the last query stands on the last key");
            list.option("--rules", o->rules,
                        "Scales, measured, qk_norm, cosine(c), soft_cap(c), temperature (default: all, as usual)");
            o->page.declare(list);
            o->declare(list);
          },
          [o] { return run(*o); }};
}

}  // namespace rootdk::app
