// One step: draw, forward with full statistics, loss, backward, clip, AdamW at the schedule's rate.
#include "lab/train/trainer.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "lab/train/check.h"
#include "lab/train/head_trace.h"
#include "rootdk/nn/cross_entropy.h"

namespace rootdk::lab {

namespace {

// Held-out batches are everyone's: no run's seed is in them.
constexpr std::uint64_t kHeldOutSeed = 0;

}  // namespace

RunOptions checked(RunOptions options, const Task& task) {
  options.model.vocabulary = task.vocabulary();
  check_positive("learning_rate", options.learning_rate);
  check_share("warmup_share", options.warmup_share);
  check_share("final_rate_share", options.final_rate_share);
  if (options.clip_norm) check_positive("clip_norm", *options.clip_norm);
  check_between("steps", options.steps, 1, 1 << 24);  // so that f32 counts them exactly
  check_between("sequences", options.sequences, 1, 1 << 20);
  check_between("evaluate_every", options.evaluate_every, 1, 1 << 24);
  check_between("evaluation_batches", options.evaluation_batches, 1, 1 << 20);
  check_between("checkpoint_every", options.checkpoint_every, 1, 1 << 24);
  options.model = nn::with_defaults(options.model);
  Scale::parse(options.scale.name());  // throws for one that a checkpoint could not name
  return options;
}

double learning_rate_at(const RunOptions& options, std::int64_t step) {
  const double steps = static_cast<double>(options.steps), t = static_cast<double>(step);
  const double warmup = options.warmup_share * steps;
  if (t <= warmup) return options.learning_rate * t / warmup;
  const double done = steps > warmup ? (t - warmup) / (steps - warmup) : 1;
  const double fall = 0.5 * (1 + std::cos(std::numbers::pi * done));
  return options.learning_rate * (options.final_rate_share + (1 - options.final_rate_share) * fall);
}

Trainer::Trainer(const Task& task, const RunOptions& options)
    : task_(task),
      options_(checked(options, task)),
      model_(options_.model),
      gradients_(options_.model),
      parameters_(model_.parameters()),
      gradient_list_(gradients_.parameters()),
      optimiser_(options_.optimiser, parameters_) {
  nn::initialise(model_, options_.seed);
}

StepTrace Trainer::step() {
  StepTrace trace;
  trace.step = steps_done() + 1;
  task_.draw(Task::Split::kTrain, options_.seed, static_cast<std::uint64_t>(steps_done()), options_.sequences, batch_);
  model_.forward({.scale = options_.scale, .stats = StatsLevel::kFull, .stats_options = {.causes = false}},
                 batch_.length, batch_.tokens, saved_);
  d_logits_.resize(saved_.logits.size());
  const nn::CrossEntropy answer =
      nn::cross_entropy<float>(options_.model.vocabulary, saved_.logits, batch_.targets, d_logits_);
  gradients_.set_zero();
  model_.backward(saved_, d_logits_, gradients_);
  const double norm = nn::norm_of(gradient_list_);

  trace.loss = static_cast<float>(answer.loss);
  trace.accuracy = static_cast<float>(answer.accuracy);
  trace.gradient_norm = static_cast<float>(norm);
  for (const auto& block : saved_.blocks)
    for (const HeadTrace& head : head_traces(block.stats)) trace.heads.push_back(head);
  if (!trace.finite()) return trace;
  const double factor = options_.clip_norm && norm > *options_.clip_norm ? *options_.clip_norm / norm : 1;
  optimiser_.step(parameters_, gradient_list_, learning_rate_at(options_, trace.step), factor);
  return trace;
}

Evaluation Trainer::evaluate() {
  double loss = 0, accuracy = 0;
  for (std::int64_t b = 0; b < options_.evaluation_batches; ++b) {
    task_.draw(Task::Split::kHeldOut, kHeldOutSeed, static_cast<std::uint64_t>(b), options_.sequences, batch_);
    model_.forward({.scale = options_.scale, .stats = StatsLevel::kNone}, batch_.length, batch_.tokens, saved_);
    const nn::CrossEntropy answer =
        nn::cross_entropy<float>(options_.model.vocabulary, saved_.logits, batch_.targets, {});
    loss += answer.loss;
    accuracy += answer.accuracy;
  }
  const auto batches = static_cast<double>(options_.evaluation_batches);
  return {steps_done(), static_cast<float>(loss / batches), static_cast<float>(accuracy / batches)};
}

}  // namespace rootdk::lab
