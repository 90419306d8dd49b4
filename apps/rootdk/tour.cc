// rootdk tour: all experiments as one story, from "what happens without scaling" to "when √d_k is not the answer".
// After every chapter results.json and report.html hold what is finished, so an interrupted tour leaves something to
// read.
#include <fmt/format.h>

#include <chrono>
#include <functional>

#include "destinations.h"
#include "report/text.h"
#include "rootdk/lab/train/experiment.h"
#include "rootdk/lab/train/recall.h"
#include "rootdk/nn/init.h"
#include "results.h"
#include "verbs.h"

namespace rootdk::app {

namespace {

struct Options : Common {
  std::string out;
  bool quick = false, force = false;
};

struct Chapter {
  Heading heading;  ///< its lead asks; the numbers answer
  std::function<Told(const lab::Watch& watch)> run;
};

lab::Explanation explain_scores(std::vector<double> scores, std::int64_t dk) {
  lab::ExplainOptions options;
  options.scores = std::move(scores);
  options.dk = dk;
  options.rules = {Scale::none(), Scale::inv_sqrt_dk(), Scale::inv_dk()};
  return lab::explain(options);
}

/// A head whose scores have exploded: q and k three and four times as large as they should be.
lab::Whatif exploded_head(std::uint64_t seed, bool quick, const lab::Watch& watch) {
  constexpr std::int64_t kDim = 64;
  constexpr double kQueries = 3, kKeys = 4;
  const std::int64_t len = quick ? 64 : 512;
  const auto draw = [&](double std, std::uint64_t stream) {
    std::vector<float> x(static_cast<std::size_t>(len * kDim));
    nn::fill(x, nn::Init::normal(std), {}, {seed, stream});
    return x;
  };
  const std::vector<float> q = draw(kQueries, 1), k = draw(kKeys, 2), v = draw(1, 3);
  const Extents shape = {1, 1, len, kDim};
  lab::WhatifOptions options;
  options.q = tensor(q.data(), shape), options.k = tensor(k.data(), shape), options.v = tensor(v.data(), shape);
  return lab::try_rules(options, watch);
}

/// What `rootdk train` does, with shorter sequences and fewer steps.
lab::TrainResult train_briefly(std::uint64_t seed, bool quick, const lab::Watch& watch) {
  lab::RecallOptions recall;
  recall.pairs = recall.asked = quick ? 2 : 4;
  lab::TrainOptions options;
  if (quick) options.learning_rates = {1e-2};
  options.run.seed = seed;
  options.run.steps = quick ? 20 : 250;
  if (quick) options.run.sequences = 8;
  options.run.evaluate_every = 10;
  return lab::train_rules(lab::RecallTask(recall), options, lab::watched_by(watch, options));
}

std::vector<Chapter> chapters(const Options& o) {
  const std::uint64_t seed = o.seed;
  const bool quick = o.quick;
  return {
      {{"one_hot", "What happens without scaling",
        "Three scores as q·k may give them, and softmax. Divided by 10 (here d_k = 100) the same scores are another "
        "matter."},
       [](const lab::Watch&) {
         return tell(explain_scores({50, 10, 5}, 100));
       }},
      {{"worked", "The same by hand, d_k = 64",
        "Scores 14, 10 and 12: exponentials, their sum, the weights, and the gradient that gets through."},
       [](const lab::Watch&) {
         return tell(explain_scores({14, 10, 12}, 64));
       }},
      {{"variance", "Why scores grow: Var(q·k) = d_k",
        "How far do q·k spread, for vectors of independent components of unit variance?"},
       [=](const lab::Watch& watch) {
         lab::VarianceOptions options;
         options.seed = seed;
         options.pairs = quick ? 5'000 : 1'000'000;
         return tell(lab::measure_variance(options, watch));
       }},
      {{"phase", "What spread does to softmax",
        "Random queries and keys: where does one key take the weight of all, and where do all share it?"},
       [=](const lab::Watch& watch) {
         lab::PhaseOptions options;
         options.seed = seed;
         if (quick) options.dk = {4, 64}, options.keys = {16, 256}, options.queries = 32, options.batches = 4;
         return tell(lab::measure_phase(options, watch));
       }},
      {{"gradient", "What is lost on the way back",
        "A random gradient at the output: how much of it arrives at the scores, at Q and at K?"},
       [=](const lab::Watch& watch) {
         lab::GradientOptions options;
         options.seed = seed;
         if (quick) options.dk = {16, 256}, options.keys = 256, options.queries = 32, options.batches = 4;
         return tell(lab::measure_gradient(options, watch));
       }},
      {{"precision", "It is not numerical stability",
        "Is saturation a matter of rounding? And what does rounding add to it?"},
       [=](const lab::Watch& watch) {
         lab::PrecisionOptions options;
         options.seed = seed;
         options.dk = {512};
         if (quick) options.dk = {64}, options.keys = 128, options.queries = 32;
         return tell(lab::measure_precision(options, watch));
       }},
      {{"train", "Does it matter? Training",
        "The same small transformer from the same seeds on the same batches, under each rule: which learns to find a "
        "key among others?"},
       [=](const lab::Watch& watch) { return tell(train_briefly(seed, quick, watch)); }},
      {{"init", "When √d_k is not the answer: the initialisation",
        "The law wants unit variance of q and k. Do real projections give it?"},
       [=](const lab::Watch& watch) {
         lab::InitialisationOptions options;
         options.seed = seed;
         options.widths = {256, 768};
         options.dk = {64};
         if (quick) options.widths = {64, 128}, options.dk = {16}, options.tokens = 32, options.batches = 4;
         return tell(lab::measure_initialisation(options, watch));
       }},
      {{"mean", "When √d_k is not the answer: means and correlation",
        "And if the components have a mean of 0.5 and correlate by 0.2?"},
       [=](const lab::Watch& watch) {
         lab::VarianceOptions options;
         options.seed = seed;
         options.components = {lab::Component::kNormal};
         options.mean = 0.5, options.correlation = 0.2;
         options.pairs = quick ? 5'000 : 200'000;
         return tell(lab::measure_variance(options, watch));
       }},
      {{"whatif", "What else there is",
        "A head whose q and k have grown to 3 and 4 times their size: what would each rule make of it?"},
       [=](const lab::Watch& watch) { return tell(exploded_head(seed, quick, watch)); }},
      {{"cost", "What it costs",
        "Statistics come out of the fused pass. How near is that pass to what the machine can do?"},
       [=](const lab::Watch& watch) {
         lab::TimingOptions options;
         options.rounds = 7;
         if (quick) options.cases = {{2, 256, 64}}, options.rounds = 2;
         return tell(lab::time_forward(options, watch));
       }},
  };
}

/// Prints and keeps as it goes.
class Teller {
 public:
  explicit Teller(const Options& options) : o_(options), results_(options) {
    results_.set_quick(o_.quick);
    if (o_.out.empty()) return;
    folder_ = Folder(o_.out);
    results_.keep(o_.out);
  }

  /// False if it was interrupted: what is finished of the chapter is kept all the same.
  bool tell_one(const Chapter& chapter, std::size_t place, std::size_t of) {
    const auto start = std::chrono::steady_clock::now();
    const Told told = [&] {
      Progress progress(fmt::format("{}/{} {}", place, of, chapter.heading.id));
      return chapter.run(progress.watch());
    }();
    results_.add(chapter.heading, told,
                 std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
    results_.set_complete(told.complete && place == of);
    conclusions_.push_back(told.conclusion);
    if (!o_.out.empty()) results_.keep(o_.out);
    if (!o_.json)
      print(heading(fmt::format("{}. {}", place, chapter.heading.title)) + report::wrap(chapter.heading.lead) + "\n" +
            told.text + "\n");
    return told.complete && !interrupted();
  }

  void close(std::size_t of) {
    if (o_.json) return print(report::dumped(results_.json()));
    std::string text = heading(conclusions_.size() == of ? "In short" : "In short, as far as it got");
    for (std::size_t i = 0; i < conclusions_.size(); ++i)
      text += report::wrap(fmt::format("{}. {}", i + 1, conclusions_[i]), "  ") + "\n";
    if (!o_.out.empty()) text += Results::where(o_.out);
    print(text);
  }

 private:
  static std::string heading(const std::string& title) {
    std::string line;
    for (std::size_t i = 0; i < report::display_width(title); ++i) line += "═";
    return title + "\n" + line + "\n";
  }

  const Options& o_;
  Folder folder_;
  Results results_;
  std::vector<std::string> conclusions_;
};

int run(const Options& o) {
  o.begin();
  Destinations(o.force).writes_results("--out", o.out);
  const std::vector<Chapter> all = chapters(o);
  Teller teller(o);
  bool on = true;
  for (std::size_t i = 0; i < all.size() && on; ++i) on = teller.tell_one(all[i], i + 1, all.size());
  teller.close(all.size());
  return on ? 0 : kInterruptedStatus;
}

}  // namespace

Verb tour_verb() {
  const auto o = std::make_shared<Options>();
  return {"tour", "Start here: all of it as one story, in about a minute",
          "  rootdk tour\n"
          "  rootdk tour --out results      and results/report.html, with its data in results.json\n"
          "  rootdk tour --quick            coarser numbers, a few seconds",
          [o](OptionList& list) {
            list.option("--out", o->out,
                        "Folder for report.html and results.json (docs/results-json.md); made if it is not there");
            list.flag("--quick", o->quick, "Small sizes: the story is the same, the intervals are wider");
            list.flag("--force", o->force, kForceHelp);
            o->declare(list);
          },
          [o] { return run(*o); }};
}

}  // namespace rootdk::app
