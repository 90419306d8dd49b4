// Rotary positions: the properties that define them.
//
// Rounding: a component becomes a·cos − b·sin with cos and sin rounded to f32: at most 3u(|a| + |b|) off (one u each
// for the factor, the product and the sum). Over a pair of length r that is 3u·√2·r in each of two components, so a
// vector of length ‖x‖ moves by at most 6u‖x‖ from where it should be; 7u covers the second order. Positions below 2¹⁴
// give angles with errors below 2¹⁴·2⁻⁵³, which is nothing beside u.
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <cmath>
#include <numeric>
#include <vector>

#include "base/visibility.h"
#include "nn/positions.h"
#include "rootdk/nn/init.h"
#include "rootdk/nn/rotary.h"
#include "support/message.h"

namespace rootdk::nn {
namespace {

using test::message_of;

using Pairing = Rotary::Pairing;
using Vector = std::vector<float>;

constexpr double kTurnError = 7 * 0x1p-24;  // beside ‖x‖; derived above

Vector random_vector(std::int64_t dim, std::uint64_t seed) {
  Vector x(static_cast<std::size_t>(dim));
  fill(x, Init::normal(1), {}, {seed, 1});
  return x;
}

double dot(const Vector& a, const Vector& b) { return std::inner_product(a.begin(), a.end(), b.begin(), 0.0); }
double norm(const Vector& a) { return std::sqrt(dot(a, a)); }

Vector turned(const Rotary& rotary, Vector x, std::int64_t position, Turn turn = Turn::kForward) {
  rotate(rotary, tensor(x.data(), {1, 1, 1, static_cast<std::int64_t>(x.size())}), {&position, 1}, turn);
  return x;
}

struct Drawn {
  Rotary rotary;
  std::int64_t dim;
  Vector q, k;
};

Drawn draw() {
  Drawn d;
  const std::int64_t pairs = *rc::gen::inRange(1, 20);
  d.dim = 2 * pairs + *rc::gen::inRange(0, 10);
  d.rotary.dims = 2 * pairs;
  d.rotary.pairing = *rc::gen::element(Pairing::kHalfSplit, Pairing::kInterleaved);
  d.rotary.base = *rc::gen::element(10.0, 10000.0, 500000.0);
  d.rotary.first_position = *rc::gen::inRange(-1000, 1000);
  const auto seed = *rc::gen::arbitrary<std::uint64_t>();
  d.q = random_vector(d.dim, seed);
  d.k = random_vector(d.dim, seed ^ 1);
  return d;
}

TEST(Rotary, PreservesLengths) {
  EXPECT_TRUE(rc::check([] {
    const Drawn d = draw();
    const double before = norm(d.q), after = norm(turned(d.rotary, d.q, *rc::gen::inRange(-5000, 5000)));
    RC_ASSERT(std::fabs(after - before) <= kTurnError * before);
  }));
}

// Both products are off by at most 2·kTurnError·‖q‖‖k‖: one for each turned factor.
TEST(Rotary, ScoresDependOnTheDifferenceOfPositionsOnly) {
  EXPECT_TRUE(rc::check([] {
    const Drawn d = draw();
    const std::int64_t p = *rc::gen::inRange(0, 2000), r = *rc::gen::inRange(0, 2000),
                       shift = *rc::gen::inRange(-2000, 2000);
    const double here = dot(turned(d.rotary, d.q, p), turned(d.rotary, d.k, r));
    const double there = dot(turned(d.rotary, d.q, p + shift), turned(d.rotary, d.k, r + shift));
    RC_ASSERT(std::fabs(here - there) <= 4 * kTurnError * norm(d.q) * norm(d.k));
  }));
}

// By a thousand times what rounding could explain.
TEST(Rotary, ScoresDoDependOnTheDifference) {
  const Vector q = random_vector(8, 1), k = random_vector(8, 2);
  for (const Pairing pairing : {Pairing::kHalfSplit, Pairing::kInterleaved}) {
    const Rotary rotary{.pairing = pairing};
    const double change = dot(turned(rotary, q, 3), k) - dot(turned(rotary, q, 4), k);
    EXPECT_GT(std::fabs(change), 1000 * 4 * kTurnError * norm(q) * norm(k));
  }
}

// Two turns: the first error is carried, not stretched, by the second.
TEST(Rotary, BackIsTheInverse) {
  EXPECT_TRUE(rc::check([] {
    const Drawn d = draw();
    const std::int64_t p = *rc::gen::inRange(-5000, 5000);
    Vector back = turned(d.rotary, turned(d.rotary, d.q, p), p, Turn::kBack);
    for (std::size_t i = 0; i < back.size(); ++i) back[i] -= d.q[i];  // exact or nearly so: the two are close
    RC_ASSERT(norm(back) <= 2 * kTurnError * norm(d.q));
  }));
}

// The formula, with frequencies written out: base 10000 and four components turn by 1 and 1/100 per position.
TEST(Rotary, TurnsByThePublishedAngles) {
  const Vector x = {1, 2, 3, 4, 5};
  const double c0 = std::cos(7.0), s0 = std::sin(7.0), c1 = std::cos(0.07), s1 = std::sin(0.07);
  const std::vector<double> split = {1 * c0 - 3 * s0, 2 * c1 - 4 * s1, 1 * s0 + 3 * c0, 2 * s1 + 4 * c1, 5};
  const std::vector<double> interleaved = {1 * c0 - 2 * s0, 1 * s0 + 2 * c0, 3 * c1 - 4 * s1, 3 * s1 + 4 * c1, 5};
  for (const auto& [pairing, want] : {std::pair{Pairing::kHalfSplit, split}, {Pairing::kInterleaved, interleaved}}) {
    const Vector got = turned({.pairing = pairing, .dims = 4}, x, 7);
    for (std::size_t i = 0; i < 4; ++i) EXPECT_NEAR(static_cast<double>(got[i]), want[i], kTurnError * norm(x)) << i;
    EXPECT_EQ(got[4], 5);
    EXPECT_EQ(turned({.pairing = pairing, .dims = 4, .first_position = 4}, x, 3), got);
  }
  EXPECT_NEAR(Rotary{}.frequency(1, 4), 0.01, 0.01 * 4 * 0x1p-53);  // pow is good to an ulp or two
}

TEST(Rotary, PairingsDifferByAPermutation) {
  EXPECT_TRUE(rc::check([] {
    Drawn d = draw();
    const std::int64_t p = *rc::gen::inRange(0, 5000);
    const auto pairs = static_cast<std::size_t>(d.rotary.dims / 2);
    const auto interleave = [&](Vector x) {
      const Vector split = x;
      for (std::size_t i = 0; i < pairs; ++i) x[2 * i] = split[i], x[2 * i + 1] = split[i + pairs];
      return x;
    };
    d.rotary.pairing = Pairing::kHalfSplit;
    const Vector split = turned(d.rotary, d.q, p);
    d.rotary.pairing = Pairing::kInterleaved;
    RC_ASSERT(turned(d.rotary, interleave(d.q), p) == interleave(split));
  }));
}

// [batch, length, heads, dim] storage through strides, against one vector at a time; positions per row, then shared.
TEST(Rotary, ReadsThroughStrides) {
  const std::int64_t batch = 2, heads = 3, length = 4, dim = 6;
  const std::vector<std::int64_t> own = {5, 6, 7, 8, 0, 10, 20, 30}, shared = {5, 6, 7, 8};
  const Rotary rotary{.dims = 4};
  for (const auto& positions : {own, shared}) {
    Vector x = random_vector(batch * length * heads * dim, 3);
    const Vector before = x;
    rotate(rotary, tensor(x.data(), {batch, heads, length, dim}, {length * heads * dim, dim, heads * dim, 1}),
           positions);
    for (std::int64_t row = 0; row < batch * length; ++row)
      for (std::int64_t h = 0; h < heads; ++h) {
        const auto begin = (row * heads + h) * dim;
        const Vector one(before.begin() + begin, before.begin() + begin + dim),
            got(x.begin() + begin, x.begin() + begin + dim);
        const std::size_t entry = static_cast<std::size_t>(row) % positions.size();
        EXPECT_EQ(got, turned(rotary, one, positions[entry])) << row << ", " << h;
      }
  }
}

// What rotary takes for a query's position is what the kernels' masks take for it.
TEST(Positions, AreThoseOfTheMask) {
  EXPECT_TRUE(rc::check([] {
    Shape s;
    s.batch = *rc::gen::inRange(0, 4), s.len_q = *rc::gen::inRange(0, 12), s.len_kv = *rc::gen::inRange(0, 12);
    std::vector<std::int64_t> key_lengths(static_cast<std::size_t>(s.batch)), q_starts = {0}, kv_starts = {0};
    for (std::int64_t& length : key_lengths) length = *rc::gen::inRange<std::int64_t>(0, s.len_kv + 1);
    for (int d = *rc::gen::inRange(0, 4); d > 0; --d) {
      q_starts.push_back(*rc::gen::inRange<std::int64_t>(q_starts.back(), s.len_q + 1));
      kv_starts.push_back(*rc::gen::inRange<std::int64_t>(kv_starts.back(), s.len_kv + 1));
    }
    Mask mask;
    mask.causal = *rc::gen::arbitrary<bool>();
    mask.diagonal =
        *rc::gen::element(Diagonal::bottom_right(), Diagonal::top_left(), Diagonal::last_key(), Diagonal::at(-3));
    if (mask.diagonal.kind == Diagonal::Kind::kLastKey) mask.key_lengths = key_lengths;
    else if (*rc::gen::arbitrary<bool>()) mask.documents = Documents{q_starts, kv_starts};

    const auto positions = query_positions(mask, s);
    const auto len_q = static_cast<std::size_t>(s.len_q);
    RC_ASSERT(positions.size() == len_q || positions.size() == len_q * static_cast<std::size_t>(s.batch));
    for (std::int64_t b = 0; b < s.batch; ++b)
      for (std::int64_t i = 0; i < s.len_q; ++i) {
        const auto entry = static_cast<std::size_t>(b * s.len_q + i) % positions.size();
        RC_ASSERT(positions[entry] == base::visible_keys(mask, s, b, i).position);
      }
  }));
}

TEST(Rotary, RefusesWhatDoesNotFit) {
  Vector x(2 * 3 * 4);
  std::vector<BFloat16> y(24);
  const Tensor t = tensor(x.data(), {2, 1, 3, 4});
  const std::vector<std::int64_t> positions = {0, 1, 2};
  const auto message = [&](const Rotary& rotary) { return message_of([&] { rotate(rotary, t, positions); }); };
  EXPECT_EQ(message({.dims = 3}), "rotary.dims: 3, but an even number of at most dim_qk = 4 is wanted");
  EXPECT_EQ(message({.dims = 6}), "rotary.dims: 6, but an even number of at most dim_qk = 4 is wanted");
  EXPECT_EQ(message({.base = -1}), "rotary.base: -1, but a finite positive number is wanted");
  EXPECT_EQ(message({.base = NAN}), "rotary.base: nan, but a finite positive number is wanted");
  EXPECT_EQ(message_of([&] { rotate({}, t, std::span(positions).first(2)); }),
            "positions: 2 entries, but length 3 or batch × length 6 are wanted");
  EXPECT_EQ(message_of([&] {
              rotate({}, tensor(y.data(), {2, 1, 3, 4}), positions);
            }),
            "x: dtype is bf16, but f32 or f64 is wanted");
}

}  // namespace
}  // namespace rootdk::nn
