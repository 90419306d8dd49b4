// rootdk whatif: a saved q and k under every rule.
#include <array>

#include "arguments.h"
#include "arrays.h"
#include "base/free_memory.h"
#include "results.h"
#include "verbs.h"

namespace rootdk::app {

namespace {

constexpr double kNumbersOfAHead = 9;  // as report::json_of(Whatif) has them

struct Options : Common {
  std::string q, k, v, rules;
  bool causal = false;
  PageOption page;
};

// Shapes first: all that follows from them is known before a number is read.
std::vector<Array> read_arrays(const Options& o, lab::WhatifOptions& options) {
  const std::array<const std::string*, 3> paths = {&o.q, &o.k, &o.v};
  const std::array<ConstTensor*, 3> tensors = {&options.q, &options.k, &options.v};
  std::vector<ArrayFile> files;
  double bytes = 0;
  for (std::size_t i = 0; i < paths.size() && !paths[i]->empty(); ++i) {
    files.emplace_back(*paths[i], Precision::kF32);
    *tensors[i] = files.back().view(*paths[i]);
    bytes += files.back().bytes();
  }
  MemoryNeed need = lab::memory_of(options);
  const double heads = static_cast<double>(options.q.shape[1]) * static_cast<double>(options.treatments.size());
  const Telling telling = {true, o.json, !o.page.path.empty()};
  need.bytes = base::saturated(static_cast<double>(need.bytes) + bytes + telling.bytes({0, kNumbersOfAHead * heads}));
  want_memory(need);
  std::vector<Array> arrays;
  for (std::size_t i = 0; i < files.size(); ++i) {
    arrays.push_back(files[i].read());
    *tensors[i] = arrays.back().view(*paths[i]);
  }
  return arrays;
}

int run(const Options& o) {
  Destinations destinations(o.page.force);
  for (const std::string& read : {o.q, o.k, o.v}) destinations.reads(read);
  o.page.check(destinations);
  lab::WhatifOptions options;
  options.causal = o.causal;
  if (!o.rules.empty()) {
    options.treatments.clear();
    for (const std::string& rule : split_list("--rules", o.rules)) options.treatments.push_back(lab::treatment(rule));
  }
  o.begin();
  const std::vector<Array> arrays = read_arrays(o, options);
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
