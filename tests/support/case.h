// A random attention problem with all the memory it points into, drawn from the whole space the library promises.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "rootdk/attention.h"
#include "support/buffer.h"
#include "support/rng.h"

namespace rootdk::test {

/// A user's own score function for tests: bends negative scores, smooth, slope between 0.5 and 1.
struct Bend {
  template <class T>
  T operator()(T s) const {
    return T(0.75) * s + T(0.25) * (std::sqrt(s * s + T(1)) - T(1));
  }
  template <class T>
  T derivative(T s) const {
    return T(0.75) + T(0.25) * s / std::sqrt(s * s + T(1));
  }
};

/// Not copyable: the problem points into the rest.
struct Case {
  Shape shape;
  Problem problem;
  Buffer q, k, v, d_o, d_lse;
  Buffer allowed, bias;
  std::vector<float> scale, gains, offsets, slopes, sink;  ///< gains, offsets: of SSMax
  std::vector<std::int64_t> key_starts, key_lengths, query_lengths, q_starts, kv_starts;
  std::vector<std::int32_t> table;
  Bend bend;
  Layout out_layout = Layout::kRowMajor;

  Case() = default;
  Case(const Case&) = delete;
  Case& operator=(const Case&) = delete;

  Inputs inputs() const { return {q.tensor(), k.tensor(), v.tensor()}; }
  std::string describe() const;

  /// Points problem's views at this case's memory.
  void link();
  /// For tests that hide keys in ways that cannot be counted beforehand: takes away a scale that counts them.
  void forget_key_counts();
  std::unique_ptr<Case> copy() const;
  /// The same problem on f64 copies of the same numbers.
  std::unique_ptr<Case> exact() const;
  /// Batch item b alone.
  std::unique_ptr<Case> item(std::int64_t b) const;
};

struct CaseLimits {
  std::int64_t work = std::int64_t{1} << 22;  ///< batch·heads·len_q·len_kv·dim at most
  std::int64_t longest = 8192;                ///< long enough for keys to be split
  bool paged = true;
  bool padding = true;  ///< key_starts, query_lengths, documents per item
};

/// Key starts and query lengths with a likelihood of `share` each, and of documents half of the time such as differ by
/// item. To be linked afterwards.
void draw_padding(Rng& rng, Case& c, double share);

std::unique_ptr<Case> random_case(std::uint64_t seed, const CaseLimits& limits = {});

}  // namespace rootdk::test
