// A small generator for test data: splitmix64. The same numbers everywhere.
#pragma once

#include <cmath>
#include <cstdint>

namespace rootdk::test {

class Rng {
 public:
  explicit Rng(std::uint64_t seed) : state_(seed * 0x9E3779B97F4A7C15ull + 0x1234567) {}

  std::uint64_t next() {
    std::uint64_t z = (state_ += 0x9E3779B97F4A7C15ull);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
    return z ^ (z >> 31);
  }
  double uniform() { return static_cast<double>(next() >> 11) * 0x1p-53; }
  std::int64_t integer(std::int64_t low, std::int64_t high) {
    return low + static_cast<std::int64_t>(next() % static_cast<std::uint64_t>(high - low + 1));
  }
  bool chance(double p) { return uniform() < p; }
  /// Small sizes are as likely as large ones.
  std::int64_t log_integer(std::int64_t low, std::int64_t high) {
    const double x = std::log(static_cast<double>(low)) +
                     uniform() * (std::log(static_cast<double>(high) + 1) - std::log(static_cast<double>(low)));
    const auto v = static_cast<std::int64_t>(std::exp(x));
    return v < low ? low : v > high ? high : v;
  }
  /// Standard normal, in pairs (Box and Muller).
  double normal() {
    if (has_spare_) {
      has_spare_ = false;
      return spare_;
    }
    const double r = std::sqrt(-2 * std::log(1 - uniform())), angle = 6.283185307179586 * uniform();
    spare_ = r * std::sin(angle);
    has_spare_ = true;
    return r * std::cos(angle);
  }

 private:
  std::uint64_t state_;
  double spare_ = 0;
  bool has_spare_ = false;
};

}  // namespace rootdk::test
