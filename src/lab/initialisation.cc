// Weights drawn for each initialiser, tokens of a norm's output sent through, scores measured by the engine.
#include "rootdk/lab/initialisation.h"

#include <cmath>

#include "engine/call_bytes.h"
#include "lab/need.h"
#include "lab/normals.h"
#include "rootdk/attention.h"
#include "rootdk/nn/linear.h"
#include "rootdk/theory/dot_product.h"
#include "rootdk/theory/head.h"

namespace rootdk::lab {

namespace {

/// [tokens, width], each of length √width: what a norm without gain makes of Gaussian inputs.
std::vector<float> normalised_tokens(std::int64_t tokens, std::int64_t width, const nn::Seed& seed) {
  std::vector<float> x = normals(tokens * width, seed);
  const auto w = static_cast<std::size_t>(width);
  for (std::size_t first = 0; first < x.size(); first += w) {
    double square = 0;
    for (std::size_t i = first; i < first + w; ++i) square += static_cast<double>(x[i]) * static_cast<double>(x[i]);
    const auto factor = static_cast<float>(std::sqrt(static_cast<double>(width) / square));
    for (std::size_t i = first; i < first + w; ++i) x[i] *= factor;
  }
  return x;
}

/// Mean over the heads of a batch of the within-row variance of q·k.
struct BatchVariance {
  double measured = 0, from_weights = 0;
};

// Weights are drawn with the fans of the whole projection, but only as many of its rows as there are heads here.
nn::Linear projection(const InitialisationOptions& o, const NamedInit& init, std::int64_t width, std::int64_t dk,
                      const nn::Seed& seed) {
  nn::Linear layer(width, o.heads * dk, false);
  nn::fill(layer.weight, init.init, init.fans(width), seed);
  return layer;
}

double variance_from_weights(const nn::Linear& w_q, const nn::Linear& w_k, std::int64_t dk, std::int64_t heads) {
  const std::vector<double> q(w_q.weight.begin(), w_q.weight.end()), k(w_k.weight.begin(), w_k.weight.end());
  const auto part = static_cast<std::size_t>(dk * w_q.in);
  double sum = 0;
  for (std::size_t h = 0; h < static_cast<std::size_t>(heads); ++h) {
    const auto project = [&](const std::vector<double>& w) {
      return theory::project({.weight = std::span(w).subspan(h * part, part)}, dk);
    };
    sum += theory::head_theory(project(q), project(k)).within_row_variance;
  }
  return sum / static_cast<double>(heads);
}

Problem unscaled() {
  Problem problem;
  problem.scale = Scale::none();
  problem.stats = StatsLevel::kFull;
  return problem;
}

BatchVariance measure_batch(const InitialisationOptions& o, const NamedInit& init, std::int64_t width, std::int64_t dk,
                            const Stream& stream) {
  const nn::Linear w_q = projection(o, init, width, dk, stream.array(0)),
                   w_k = projection(o, init, width, dk, stream.array(1));
  const std::vector<float> x_q = normalised_tokens(o.tokens, width, stream.array(2)),
                           x_k = normalised_tokens(o.tokens, width, stream.array(3));
  std::vector<float> q(static_cast<std::size_t>(o.tokens * o.heads * dk)), k(q.size()),
      output(static_cast<std::size_t>(o.tokens * o.heads));
  nn::apply(w_q, x_q, q);
  nn::apply(w_k, x_k, k);

  // [tokens, heads, dim], seen as [1, heads, tokens, dim]; values are not looked at.
  const Extents shape = {1, o.heads, o.tokens, dk}, strides = {0, dk, o.heads * dk, 1};
  const float one = 1;
  const Stats stats = forward(unscaled(),
                              {tensor<float>(static_cast<const float*>(q.data()), shape, strides),
                               tensor<float>(static_cast<const float*>(k.data()), shape, strides),
                               tensor(&one, {1, o.heads, o.tokens, 1}, {0, 0, 0, 0})},
                              {tensor(output.data(), {1, o.heads, o.tokens, 1})});
  BatchVariance out;
  for (std::int64_t h = 0; h < o.heads; ++h)
    out.measured += stats.at(0, h).raw.within_row_variance() / static_cast<double>(o.heads);
  out.from_weights = variance_from_weights(w_q, w_k, dk, o.heads);
  return out;
}

InitialisationRow row_of(const NamedInit& init, std::int64_t width, std::int64_t dk,
                         const std::vector<BatchVariance>& batches) {
  InitialisationRow row;
  row.init = init.name;
  row.width = width;
  row.dk = dk;
  row.weight_std = init.init.standard_deviation(init.fans(width));
  const theory::Components components = theory::projected_components(width, row.weight_std);
  row.predicted = theory::unit_variance_divisor(dk, components, components);
  std::vector<double> measured;
  double from_weights = 0;
  for (const BatchVariance& b : batches) {
    measured.push_back(b.measured);
    from_weights += b.from_weights / static_cast<double>(batches.size());
  }
  row.from_weights = std::sqrt(from_weights);
  row.variance = estimate(measured);
  row.measured = std::sqrt(row.variance.value);
  row.after_sqrt_dk = row.measured / std::sqrt(static_cast<double>(dk));
  return row;
}

// Both projections, their inputs and outputs; then either a call, or the projections in double and, of one head of
// each, the weights again and the moments: theory::project holds up to five matrices [d_k, d_k], theory::head_theory
// eleven.
double bytes_of(const InitialisationOptions& o) {
  const std::int64_t dk = *std::max_element(o.dk.begin(), o.dk.end());
  const double width = largest(o.widths), tokens = real(o.tokens), rows = real(o.heads) * real(dk);
  const double arrays = sizeof(float) * (2 * rows * width + 2 * tokens * (width + rows) + tokens * real(o.heads));
  const double call = engine::bytes_of_call(unscaled(), {1, o.heads, o.heads, o.tokens, o.tokens, dk, 1, DType::kF32});
  const double moments = std::max(real(dk) * width + 5 * real(dk) * real(dk), 11 * real(dk) * real(dk));
  const double points = real(o.inits.size()) * real(o.widths.size()) * real(o.dk.size());
  constexpr double kMore = 1.1;  // on a busy machine it was seen to take a tenth more than this sum; why is not known
  return kMore * (arrays + std::max(call, sizeof(double) * (2 * rows * width + moments))) +
         points * sizeof(InitialisationRow) + real(o.batches) * sizeof(BatchVariance);
}

}  // namespace

std::vector<NamedInit> usual_initialisations() {
  return {{"Xavier, square", nn::Init::xavier_uniform()},
          {"Xavier, packed", nn::Init::xavier_uniform(), true},
          {"LeCun", nn::Init::lecun_normal()},
          {"He", nn::Init::he_normal()},
          {"N(0, 0.02)", nn::Init::normal(0.02)}};
}

MemoryNeed memory_of(const InitialisationOptions& o) {
  want_all_between("widths", o.widths, 1, kMostDims);
  want_all_between("dk", o.dk, 1, kMostDims);
  want_some("inits", o.inits);
  want_between("tokens", o.tokens, 2, kMostQueries);
  want_between("heads", o.heads, 1, kMostDims);
  want_between("batches", o.batches, 2, kMostBatches);
  return need_of(
      o, [](const InitialisationOptions& options) { return bytes_of(options); },
      Size{"heads", &InitialisationOptions::heads}, Size{"widths", &InitialisationOptions::widths},
      Size{"dk", &InitialisationOptions::dk}, Size{"tokens", &InitialisationOptions::tokens},
      Size{"batches", &InitialisationOptions::batches});
}

Initialisation measure_initialisation(const InitialisationOptions& o, const Watch& watch) {
  want_memory(memory_of(o));
  Initialisation out;
  out.options = o;
  const auto cost = [](std::int64_t width, std::int64_t dk) {
    return static_cast<double>(width) * static_cast<double>(dk);
  };
  double all = 0, done = 0;
  for (const std::int64_t width : o.widths)
    for (const std::int64_t dk : o.dk)
      all += static_cast<double>(o.inits.size()) * static_cast<double>(o.batches) * cost(width, dk);
  std::uint32_t point = 0;
  for (const NamedInit& init : o.inits)
    for (const std::int64_t width : o.widths)
      for (const std::int64_t dk : o.dk) {
        std::vector<BatchVariance> batches;
        for (std::int64_t b = 0; b < o.batches; ++b) {
          if (watch.stopped()) {
            out.complete = false;
            return out;
          }
          watch.report(done / all, fmt::format("{}, width {}, d_k {}", init.name, width, dk));
          batches.push_back(
              measure_batch(o, init, width, dk, {o.seed, kInitialisationStream, point, static_cast<std::uint32_t>(b)}));
          done += cost(width, dk);
        }
        out.rows.push_back(row_of(init, width, dk, batches));
        ++point;
      }
  watch.report(1);
  return out;
}

}  // namespace rootdk::lab
