// rootdk playground: one random head under one rule.
#include "arguments.h"
#include "base/free_memory.h"
#include "verbs.h"

namespace rootdk::app {

namespace {

struct Options : Common {
  lab::PlaygroundOptions experiment;
  std::string rule = experiment.rule.name, soft_cap = "off", sink = "off";
};

std::optional<double> or_off(const char* option, const std::string& text) {
  if (text == "off") return {};
  const std::vector<double> values = numbers(option, text);
  if (values.size() != 1) base::refuse("{}: \"{}\", but off or one number is wanted", option, text);
  return values[0];
}

int run(const Options& o) {
  o.begin();
  lab::PlaygroundOptions options = o.experiment;
  options.rule = lab::treatment(o.rule);
  options.soft_cap = or_off("--soft-cap", o.soft_cap);
  options.sink = or_off("--sink", o.sink);
  options.seed = o.seed;
  MemoryNeed need = lab::memory_of(options);
  const Telling telling = {false, o.json, false};
  const double told = telling.bytes({3 * static_cast<double>(options.keys), 0});
  need.bytes = base::saturated(static_cast<double>(need.bytes) + told);
  want_memory_for_options(need);
  emit(o, lab::play(options));
  return 0;
}

}  // namespace

Verb playground_verb() {
  const auto o = std::make_shared<Options>();
  return {"playground", "One random head under one rule: spread, softmax and gradient, beside theory",
          "  rootdk playground --rule none\n"
          "  rootdk playground --dk 128 --keys 4096 --rule \"sqrt_dk*ssmax(0.43)\" --causal\n"
          "  rootdk playground --sigma-q 3 --soft-cap 50 --json",
          [o](OptionList& list) {
            lab::PlaygroundOptions& x = o->experiment;
            list.option("--dk", x.dk, "Head dimension");
            list.option("--keys", x.keys, "Number of keys, from 2");
            list.option("--queries", x.queries, "Number of queries");
            list.option("--rule", o->rule, "A scale that rootdk rules lists, measured, qk_norm or cosine(c)");
            list.option("--sigma-q", x.sigma_q, "Standard deviation of the components of q");
            list.option("--sigma-k", x.sigma_k, "Standard deviation of the components of k");
            list.option("--mean", x.mean, "Mean of every component");
            list.option("--corr,--correlation", x.correlation, "Correlation of any two components of a vector, 0 to 1");
            list.option("--soft-cap", o->soft_cap, "cap·tanh(s/cap) after the scale: off, or a number above 0");
            list.option("--sink", o->sink, "One more key of this score, whose value is 0: off, or a number");
            list.option("--dropout", x.dropout, "Share of the weights to drop");
            list.flag("--causal", x.causal,
                      "A query sees the keys up to its own; the last query stands on the last key");
            list.option("--row", x.row, "The query that is looked at key by key, from 0");
            o->declare(list);
          },
          [o] { return run(*o); }};
}

}  // namespace rootdk::app
