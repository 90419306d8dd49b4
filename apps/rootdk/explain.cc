// rootdk explain: one row of scores, step by step.
#include "arguments.h"
#include "arrays.h"
#include "results.h"
#include "verbs.h"

namespace rootdk::app {

namespace {

struct Options : Common {
  std::string scores, q, rules = joined(lab::ExplainOptions().rules), gradient;
  std::vector<std::string> keys;
  std::int64_t dk = 0;
  PageOption page;
};

std::vector<double> scores_of(const std::string& text) {
  if (!text.ends_with(".npy")) return numbers("--scores", text);
  const Array array = read_array(text);
  if (array.shape.size() != 1)
    base::refuse("--scores: {} has {} axes, but a row of scores has 1", text, array.shape.size());
  if (array.count() == 0) base::refuse("--scores: {} is empty", text);
  std::vector<double> out;
  for (std::int64_t i = 0; i < array.count(); ++i) out.push_back(array.at(i));
  return out;
}

int run(const Options& o) {
  o.begin();
  lab::ExplainOptions options;
  if (!o.scores.empty()) options.scores = scores_of(o.scores);
  if (!o.scores.empty() && o.dk == 0) base::refuse("--dk: missing; scores alone do not say what d_k was");
  options.dk = o.dk;
  if (!o.q.empty()) options.q = numbers("--q", o.q);
  for (const std::string& k : o.keys) options.keys.push_back(numbers("--k", k));
  options.rules = scales("--rules", o.rules);
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
