// rootdk tour: all experiments as one story, from "what happens without scaling" to "when √d_k is not the answer".
// After every chapter results.json and report.html hold what is finished, so an interrupted tour leaves something to
// read.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <functional>

#include "destinations.h"
#include "laboratory.h"
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
  bool quick = false, only_report = false, force = false;
};

struct Chapter {
  Heading heading;  ///< its lead asks; the numbers answer
  MemoryNeed need;
  std::function<Told(const lab::Watch& watch)> run;
};

template <class Options, class Result>
Chapter chapter(Heading heading, const Options& options,
                Result (*experiment)(const Options& options, const lab::Watch& watch)) {
  return {std::move(heading), lab::memory_of(options),
          [=](const lab::Watch& watch) { return tell(experiment(options, watch)); }};
}

Chapter explained(Heading heading, std::vector<double> scores, std::int64_t dk) {
  lab::ExplainOptions options;
  options.scores = std::move(scores);
  options.dk = dk;
  options.rules = {Scale::none(), Scale::inv_sqrt_dk(), Scale::inv_dk()};
  return {std::move(heading), lab::memory_to_explain(options.scores.size(), options.rules.size()),
          [=](const lab::Watch&) { return tell(lab::explain(options)); }};
}

/// A head whose scores have exploded: q and k three and four times as large as they should be.
struct ExplodedHead {
  std::vector<float> q, k, v;
  lab::WhatifOptions options;

  ExplodedHead(std::uint64_t seed, std::int64_t len) {
    constexpr std::int64_t kDim = 64;
    constexpr double kQueries = 3, kKeys = 4;
    const auto draw = [&](double std, std::uint64_t stream) {
      std::vector<float> x(static_cast<std::size_t>(len * kDim));
      nn::fill(x, nn::Init::normal(std), {}, {seed, stream});
      return x;
    };
    q = draw(kQueries, 1), k = draw(kKeys, 2), v = draw(1, 3);
    const Extents shape = {1, 1, len, kDim};
    const auto view = [&](const std::vector<float>& x) { return tensor(x.data(), shape); };
    options.q = view(q), options.k = view(k), options.v = view(v);
  }
};

Chapter exploded(Heading heading, std::uint64_t seed, bool quick) {
  const auto head = std::make_shared<const ExplodedHead>(seed, quick ? 64 : 512);
  return {std::move(heading), lab::memory_of(head->options),
          [=](const lab::Watch& watch) { return tell(lab::try_rules(head->options, watch)); }};
}

/// What `rootdk train` does, with shorter sequences and fewer steps.
Chapter trained(Heading heading, std::uint64_t seed, bool quick) {
  lab::RecallOptions recall;
  recall.pairs = recall.asked = quick ? 2 : 4;
  lab::TrainOptions options;
  if (quick) options.learning_rates = {1e-2};
  options.run.seed = seed;
  options.run.steps = quick ? 20 : 250;
  if (quick) options.run.sequences = 8;
  options.run.evaluate_every = 10;
  const lab::RecallTask task(recall);
  return {std::move(heading), lab::memory_of(task, options), [=](const lab::Watch& watch) {
            return tell(lab::train_rules(task, options, lab::watched_by(watch, options)));
          }};
}

lab::VarianceOptions variance(std::uint64_t seed, std::int64_t pairs) {
  lab::VarianceOptions options;
  options.seed = seed;
  options.pairs = pairs;
  return options;
}

lab::VarianceOptions with_mean(lab::VarianceOptions options) {
  options.components = {lab::Component::kNormal};
  options.mean = 0.5, options.correlation = 0.2;
  return options;
}

lab::PhaseOptions phase(std::uint64_t seed, bool quick) {
  lab::PhaseOptions options;
  options.seed = seed;
  if (quick) options.dk = {4, 64}, options.keys = {16, 256}, options.queries = 32, options.batches = 4;
  return options;
}

lab::GradientOptions gradient(std::uint64_t seed, bool quick) {
  lab::GradientOptions options;
  options.seed = seed;
  if (quick) options.dk = {16, 256}, options.keys = 256, options.queries = 32, options.batches = 4;
  return options;
}

lab::PrecisionOptions precision(std::uint64_t seed, bool quick) {
  lab::PrecisionOptions options;
  options.seed = seed;
  options.dk = {512};
  if (quick) options.dk = {64}, options.keys = 128, options.queries = 32;
  return options;
}

lab::InitialisationOptions initialisation(std::uint64_t seed, bool quick) {
  lab::InitialisationOptions options;
  options.seed = seed;
  options.widths = {256, 768};
  options.dk = {64};
  if (quick) options.widths = {64, 128}, options.dk = {16}, options.tokens = 32, options.batches = 4;
  return options;
}

lab::TimingOptions timing(bool quick) {
  lab::TimingOptions options;
  options.rounds = 7;
  if (quick) options.cases = {{2, 256, 64}}, options.rounds = 2;
  return options;
}

std::vector<Chapter> chapters(const Options& o) {
  const std::uint64_t seed = o.seed;
  const bool quick = o.quick;
  return {
      explained({"one_hot", "What happens without scaling",
                 "Three scores as q·k may give them, and softmax. Divided by 10 (here d_k = 100) the same scores are "
                 "another matter."},
                {50, 10, 5}, 100),
      explained({"worked", "The same by hand, d_k = 64",
                 "Scores 14, 10 and 12: exponentials, their sum, the weights, and the gradient that gets through."},
                {14, 10, 12}, 64),
      chapter({"variance", "Why scores grow: Var(q·k) = d_k",
               "How far do q·k spread, for vectors of independent components of unit variance?"},
              variance(seed, quick ? 5'000 : 1'000'000), lab::measure_variance),
      chapter({"phase", "What spread does to softmax",
               "Random queries and keys: where does one key take the weight of all, and where do all share it?"},
              phase(seed, quick), lab::measure_phase),
      chapter({"gradient", "What is lost on the way back",
               "A random gradient at the output: how much of it arrives at the scores, at Q and at K?"},
              gradient(seed, quick), lab::measure_gradient),
      chapter({"precision", "It is not numerical stability",
               "Is saturation a matter of rounding? And what does rounding add to it?"},
              precision(seed, quick), lab::measure_precision),
      trained({"train", "Does it matter? Training",
               "The same small transformer from the same seeds on the same batches, under each rule: which learns to "
               "find a key among others?"},
              seed, quick),
      chapter({"init", "When √d_k is not the answer: the initialisation",
               "The law wants unit variance of q and k. Do real projections give it?"},
              initialisation(seed, quick), lab::measure_initialisation),
      chapter({"mean", "When √d_k is not the answer: means and correlation",
               "And if the components have a mean of 0.5 and correlate by 0.2?"},
              with_mean(variance(seed, quick ? 5'000 : 200'000)), lab::measure_variance),
      exploded({"whatif", "What else there is",
                "A head whose q and k have grown to 3 and 4 times their size: what would each rule make of it?"},
               seed, quick),
      chapter({"cost", "What it costs",
               "Statistics come out of the fused pass. How near is that pass to what the machine can do?"},
              timing(quick), lab::time_forward),
  };
}

// Of the largest chapter, and of what is kept of those before it. Sizes are the tour's own, so no option is to blame.
MemoryNeed memory_of(const std::vector<Chapter>& all) {
  constexpr std::int64_t kKept = 12 << 20;
  MemoryNeed need;
  for (const Chapter& one : all) {
    need.bytes = std::max(need.bytes, one.need.bytes);
    need.threads = std::max(need.threads, one.need.threads);
  }
  need.bytes += kKept;
  return need;
}

/// Prints and keeps as it goes.
class Teller {
 public:
  explicit Teller(const Options& options) : o_(options), results_(options) {
    results_.set_quick(o_.quick);
    if (o_.out.empty()) return;
    folder_ = Folder(o_.out);
    if (!o_.only_report) laboratory_ = laboratory_page();
    keep();
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
    if (!o_.out.empty()) keep();
    if (!o_.json)
      print(heading(fmt::format("{}. {}", place, chapter.heading.title)) + output_layout().wrap(chapter.heading.lead) +
            "\n" + told.text + "\n");
    return told.complete && !interrupted();
  }

  void close(std::size_t of) {
    if (o_.json) return print(report::dumped(results_.json()));
    std::string text = heading(conclusions_.size() == of ? "In short" : "In short, as far as it got");
    for (std::size_t i = 0; i < conclusions_.size(); ++i)
      text += output_layout().wrap(fmt::format("{}. {}", i + 1, conclusions_[i]), "  ") + "\n";
    if (!o_.out.empty()) {
      text += Results::where(o_.out);
      if (!laboratory_.empty())
        text += output_layout().wrap(
            "The engine is in the report: sliders, a playground, training and an audit, in a browser.");
      else if (!o_.only_report)
        text += output_layout().wrap(
            "The report is static: for one with the engine in it, build the page first (./run site).");
    }
    print(text);
  }

 private:
  void keep() const { results_.keep(o_.out, laboratory_); }

  static std::string heading(const std::string& title) {
    const std::string lines = output_layout().wrap(title);
    std::string rule;
    for (std::size_t i = 0; i < report::display_width(lines.substr(0, lines.find('\n'))); ++i) rule += "═";
    return lines + rule + "\n";
  }

  const Options& o_;
  Folder folder_;
  Results results_;
  std::string laboratory_;
  std::vector<std::string> conclusions_;
};

int run(const Options& o) {
  o.begin();
  Destinations(o.force).writes_results("--out", o.out);
  const std::vector<Chapter> all = chapters(o);
  want_memory(memory_of(all));
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
            list.flag("--static", o->only_report,
                      "A report to read, a third of the size: without the engine and its sliders");
            list.flag("--force", o->force, kForceHelp);
            o->declare(list);
          },
          [o] { return run(*o); }};
}

}  // namespace rootdk::app
