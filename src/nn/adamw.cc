// One pass over chunks of each parameter; norms of gradients summed in a fixed order.
#include "rootdk/nn/adamw.h"

#include <cmath>
#include <cstddef>
#include <utility>

#include "base/refuse.h"
#include "nn/chunks.h"

namespace rootdk::nn {

using base::refuse;

namespace {

// Elements that a thread takes at a time, and that are summed together.
constexpr std::int64_t kUpdateChunk = 1 << 12;

std::size_t count_of(std::span<const Parameter<float>> parameters) {
  std::size_t count = 0;
  for (const Parameter<float>& p : parameters) count += p.values.size();
  return count;
}

void check_share(const char* name, double value) {
  if (!(value >= 0 && value < 1)) refuse("{}: {}, but at least 0 and less than 1 is wanted", name, value);
}

}  // namespace

AdamW::AdamW(const AdamWOptions& options, std::span<const Parameter<float>> parameters) : options_(options) {
  check_share("beta1", options.beta1);
  check_share("beta2", options.beta2);
  if (!(options.epsilon > 0 && std::isfinite(options.epsilon)))
    refuse("epsilon: {}, but a finite positive number is wanted", options.epsilon);
  if (!(options.weight_decay >= 0 && std::isfinite(options.weight_decay)))
    refuse("weight_decay: {}, but a finite number of at least 0 is wanted", options.weight_decay);
  state_.m.assign(count_of(parameters), 0.0f);
  state_.v = state_.m;
}

void AdamW::step(std::span<const Parameter<float>> parameters, std::span<const Parameter<float>> gradients,
                 double learning_rate, double gradient_factor) {
  if (count_of(parameters) != state_.m.size())
    refuse("parameters: {} values, but {} are wanted", count_of(parameters), state_.m.size());
  if (gradients.size() != parameters.size())
    refuse("gradients: {} arrays, but there are {} of parameters", gradients.size(), parameters.size());
  for (std::size_t n = 0; n < parameters.size(); ++n)
    if (gradients[n].values.size() != parameters[n].values.size())
      refuse("gradients[{}]: {} values, but {} has {}", n, gradients[n].values.size(), parameters[n].name,
             parameters[n].values.size());

  const double t = static_cast<double>(++state_.steps);
  const auto beta1 = static_cast<float>(options_.beta1), beta2 = static_cast<float>(options_.beta2);
  const auto rate = static_cast<float>(learning_rate / (1 - std::pow(options_.beta1, t)));
  const auto unbias = static_cast<float>(1 / std::sqrt(1 - std::pow(options_.beta2, t)));
  const auto epsilon = static_cast<float>(options_.epsilon), factor = static_cast<float>(gradient_factor);
  std::size_t begin = 0;
  for (std::size_t n = 0; n < parameters.size(); ++n) {
    const std::span<float> w = parameters[n].values, g = gradients[n].values;
    float* const m = state_.m.data() + begin;
    float* const v = state_.v.data() + begin;
    const auto keep = static_cast<float>(1 - (parameters[n].decays() ? learning_rate * options_.weight_decay : 0));
    for_each_chunk(
        static_cast<std::int64_t>(w.size()),
        [&](std::int64_t, std::int64_t first, std::int64_t last) {
          for (auto i = static_cast<std::size_t>(first); i < static_cast<std::size_t>(last); ++i) {
            const float d = g[i] * factor;
            m[i] = beta1 * m[i] + (1 - beta1) * d;
            v[i] = beta2 * v[i] + (1 - beta2) * d * d;
            w[i] = keep * w[i] - rate * m[i] / (std::sqrt(v[i]) * unbias + epsilon);
          }
        },
        kUpdateChunk);
    begin += w.size();
  }
}

void AdamW::restore(AdamWState state) {
  if (state.steps < 0) refuse("state.steps: {}, but at least 0 is wanted", state.steps);
  if (state.m.size() != state_.m.size() || state.v.size() != state_.v.size())
    refuse("state: moments of {} and {} values, but {} are wanted", state.m.size(), state.v.size(), state_.m.size());
  state_ = std::move(state);
}

double norm_of(std::span<const Parameter<float>> gradients) {
  double squares = 0;
  for (const Parameter<float>& g : gradients) {
    std::vector<double> sums(
        static_cast<std::size_t>(chunks_in(static_cast<std::int64_t>(g.values.size()), kUpdateChunk)));
    for_each_chunk(
        static_cast<std::int64_t>(g.values.size()),
        [&](std::int64_t chunk, std::int64_t first, std::int64_t last) {
          double sum = 0;
          for (auto i = static_cast<std::size_t>(first); i < static_cast<std::size_t>(last); ++i)
            sum += static_cast<double>(g.values[i]) * static_cast<double>(g.values[i]);
          sums[static_cast<std::size_t>(chunk)] = sum;
        },
        kUpdateChunk);
    for (const double sum : sums) squares += sum;
  }
  return std::sqrt(squares);
}

}  // namespace rootdk::nn
