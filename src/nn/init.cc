// Philox with an element's index in its counter, two numbers at a time; standard deviations from the fans.
#include "base/refuse.h"
#include "rootdk/nn/init.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <numbers>

#include "base/parallel.h"
#include "base/philox.h"
#include "nn/linear.h"

namespace rootdk::nn {

using base::refuse;

namespace {

// Counters of dropout end in a batch index below 2³⁰, these in a stream XOR this: one seed may serve both.
constexpr std::uint32_t kInitTag = 0x696E6974;

// Below so many numbers waking threads takes longer than drawing them.
constexpr std::int64_t kWorthThreadsToDraw = 1 << 12;

// Two independent uniforms in the open interval (0, 1): the middles of 2⁵² equal parts (2⁵³ would round up to 1).
std::array<double, 2> uniform_pair(const Seed& seed, std::uint64_t index) {
  const auto words = base::philox4x32(
      {static_cast<std::uint32_t>(index), static_cast<std::uint32_t>(index >> 32),
       static_cast<std::uint32_t>(seed.stream), static_cast<std::uint32_t>(seed.stream >> 32) ^ kInitTag},
      static_cast<std::uint32_t>(seed.value), static_cast<std::uint32_t>(seed.value >> 32));
  const auto uniform = [](std::uint32_t high, std::uint32_t low) {
    const std::uint64_t bits = (static_cast<std::uint64_t>(high) << 32 | low) >> 12;
    return (static_cast<double>(bits) + 0.5) * 0x1p-52;
  };
  return {uniform(words[0], words[1]), uniform(words[2], words[3])};
}

// Mean 0, variance 1, two at a time.
std::array<double, 2> draw(Init::Distribution distribution, const Seed& seed, std::uint64_t index) {
  const auto [u, w] = uniform_pair(seed, index);
  if (distribution == Init::Distribution::kUniform) {
    const double half_width = std::numbers::sqrt3;
    return {half_width * (2 * u - 1), half_width * (2 * w - 1)};
  }
  const double radius = std::sqrt(-2 * std::log(u)), angle = 2 * std::numbers::pi * w;  // Box–Muller
  return {radius * std::cos(angle), radius * std::sin(angle)};
}

void check_fan(const char* name, std::int64_t fan) {
  if (fan < 1) refuse("fans.{}: {}, but at least 1 is wanted", name, fan);
}

}  // namespace

double Init::standard_deviation(const Fans& fans) const {
  if (!std::isfinite(gain)) refuse("init.gain: {} is not finite", gain);
  switch (rule) {
    case Rule::kFixed:
      if (!(fixed_std >= 0 && std::isfinite(fixed_std)))
        refuse("init.fixed_std: {}, but a finite number of at least 0 is wanted", fixed_std);
      return gain * fixed_std;
    case Rule::kXavier:
      check_fan("in", fans.in);
      check_fan("out", fans.out);
      return gain * std::sqrt(2.0 / (static_cast<double>(fans.in) + static_cast<double>(fans.out)));
    case Rule::kLeCun: check_fan("in", fans.in); return gain / std::sqrt(static_cast<double>(fans.in));
    case Rule::kHe: check_fan("in", fans.in); return gain * std::sqrt(2.0 / static_cast<double>(fans.in));
  }
  refuse("init.rule: {} is none of the rules", static_cast<int>(rule));
}

namespace {

template <class T>
void fill_with(std::span<T> values, const Init& init, const Fans& fans, const Seed& seed) {
  const double sigma = init.standard_deviation(fans);
  const auto count = static_cast<std::int64_t>(values.size());
  base::parallel_for((count + 1) / 2, count > kWorthThreadsToDraw ? base::free_threads() : 1, [&](std::int64_t half) {
    const auto pair = draw(init.distribution, seed, static_cast<std::uint64_t>(half));
    const std::int64_t i = 2 * half;
    values[static_cast<std::size_t>(i)] = static_cast<T>(sigma * pair[0]);
    if (i + 1 < count) values[static_cast<std::size_t>(i + 1)] = static_cast<T>(sigma * pair[1]);
  });
}

}  // namespace

void fill(std::span<float> values, const Init& init, const Fans& fans, const Seed& seed) {
  fill_with(values, init, fans, seed);
}
void fill(std::span<double> values, const Init& init, const Fans& fans, const Seed& seed) {
  fill_with(values, init, fans, seed);
}

template <class T>
void initialise(BasicLinear<T>& layer, const Init& init, const Seed& seed) {
  check_linear("layer", layer, layer.in, layer.out);
  fill(layer.weight, init, {layer.in, layer.out}, seed);
  std::fill(layer.bias.begin(), layer.bias.end(), T(0));
}

template void initialise(BasicLinear<float>&, const Init&, const Seed&);
template void initialise(BasicLinear<double>&, const Init&, const Seed&);

}  // namespace rootdk::nn
