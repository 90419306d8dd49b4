// rootdk explain: one row of scores, step by step.
#include "arguments.h"
#include "arrays.h"
#include "base/free_memory.h"
#include "results.h"
#include "verbs.h"

namespace rootdk::app {

namespace {

struct Options : Common {
  std::string scores, q, rules = joined(lab::ExplainOptions().rules), gradient;
  std::vector<std::string> keys;
  std::optional<std::int64_t> dk;
  PageOption page;
};

// Of the explanation, of its JSON (two rows, and five under each rule) and of the scores as they are read.
void want_memory_for(const Options& o, std::int64_t scores, std::size_t rules) {
  const auto count = static_cast<double>(scores);
  MemoryNeed need = lab::memory_to_explain(static_cast<std::size_t>(scores), rules);
  const Telling telling = {true, o.json, !o.page.path.empty()};
  const double more = telling.bytes({(2 + 5 * static_cast<double>(rules)) * count, 0}) + 2 * sizeof(double) * count;
  need.bytes = base::saturated(static_cast<double>(need.bytes) + more);
  want_memory_for_options(need);
}

std::vector<double> scores_of(const Options& o, std::size_t rules) {
  if (!o.scores.ends_with(".npy")) return numbers("--scores", o.scores);
  const ArrayFile file(o.scores);
  if (file.shape().size() != 1)
    base::refuse("--scores: {} has {} axes, but a row of scores has 1", o.scores, file.shape().size());
  if (file.shape()[0] == 0) base::refuse("--scores: {} is empty", o.scores);
  want_memory_for(o, file.shape()[0], rules);
  const Array array = file.read();
  std::vector<double> out(static_cast<std::size_t>(array.count()));
  for (std::size_t i = 0; i < out.size(); ++i) out[i] = array.at(static_cast<std::int64_t>(i));
  return out;
}

int run(const Options& o) {
  o.begin();
  lab::ExplainOptions options;
  options.rules = scales("--rules", o.rules);
  if (!o.scores.empty()) options.scores = scores_of(o, options.rules.size());
  if (!o.scores.empty() && !o.dk) base::refuse("--dk: missing; scores alone do not say what d_k was");
  if (o.dk && *o.dk < 1) base::refuse("--dk: {}, but a whole number of at least 1 is wanted", *o.dk);
  options.dk = o.dk.value_or(0);
  if (!o.q.empty()) options.q = numbers("--q", o.q);
  for (const std::string& k : o.keys) options.keys.push_back(numbers("--k", k));
  if (!o.gradient.empty()) options.upstream = numbers("--gradient", o.gradient);
  Destinations destinations(o.page.force);
  if (o.scores.ends_with(".npy")) destinations.reads(o.scores);
  o.page.check(destinations);
  lab::Explanation found;
  const double seconds = timed([&] { found = lab::explain(options); });
  o.page.write(o,
               {"explain", "One row of scores, step by step",
                "What does softmax make of these scores under each rule, and what gradient does it let through?"},
               tell(found), seconds);
  emit(o, found);
  return 0;
}

}  // namespace

Verb explain_verb() {
  const auto o = std::make_shared<Options>();
  return {"explain", "One row of scores, step by step: exponentials, softmax, Jacobian, gradient",
          "  rootdk explain --scores 14,10,12 --dk 64\n"
          "  rootdk explain --q 1,0,1,0 --k 0,1,1,1 --k 1,1,0,0\n"
          "  rootdk explain --scores 14,10,12 --dk 64 --html row.html\n"
          "  rootdk explain --scores row.npy --dk 128 --rules none,sqrt_dk,\"sqrt_dk*ssmax(0.43)\"",
          [o](OptionList& list) {
            list.option("--scores", o->scores, "The scores q·k of one query: numbers, or a .npy file with one axis");
            list.option("--dk", o->dk, "Length of q and k; needed with --scores");
            list.option("--q", o->q, "The query, in place of scores");
            list.option("--k", o->keys, "A key; may be given several times");
            list.option("--rules", o->rules, "What to divide by; rootdk rules lists them");
            list.option("--gradient", o->gradient, "Gradient on each weight (default: 1 on the largest, 0 elsewhere)");
            o->page.declare(list);
            o->declare(list);
          },
          [o] { return run(*o); }};
}

}  // namespace rootdk::app
