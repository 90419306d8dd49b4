// Included once per instruction set. Lanes are pairs. Only +, ·, / and √, each rounded on its own and never fused: the
// same bits everywhere.
#include <cmath>
#include <numbers>

#include "cpu/vector_math-inl.h"
#include "lab/draws.h"

HWY_BEFORE_NAMESPACE();
namespace rootdk::lab {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;
using namespace cpu::HWY_NAMESPACE;  // f32, V, U, I, kLanes, philox4x32

using Words = hn::Vec<U>;

HWY_INLINE V polynomial(V x, std::initializer_list<double> from_highest) {
  V sum = hn::Zero(f32);
  for (const double c : from_highest) sum = hn::Add(hn::Mul(sum, x), hn::Set(f32, static_cast<float>(c)));
  return sum;
}

// (0, 1]: 31 bits and a half, so never 0.
HWY_INLINE V unit(Words w) {
  const V whole = hn::ConvertTo(f32, hn::BitCast(I(), hn::ShiftRight<1>(w)));
  return hn::Mul(hn::Add(whole, hn::Set(f32, 0.5f)), hn::Set(f32, 0x1p-31f));
}

// ln u for normal u > 0: u = 2^e·m with m in [√½, √2), and ln m = 2·atanh s, s = (m−1)/(m+1), |s| < 0.172: five terms
// are right to 2e-9.
HWY_INLINE V natural_log(V u) {
  const auto root_half = hn::Set(I(), 0x3F3504F3);
  const auto shifted = hn::Sub(hn::BitCast(I(), u), root_half);
  const V e = hn::ConvertTo(f32, hn::ShiftRight<23>(shifted));
  const V m = hn::BitCast(f32, hn::Add(hn::And(shifted, hn::Set(I(), 0x7FFFFF)), root_half));
  const V one = hn::Set(f32, 1.0f), s = hn::Div(hn::Sub(m, one), hn::Add(m, one));
  const V series = polynomial(hn::Mul(s, s), {2.0 / 9, 2.0 / 7, 2.0 / 5, 2.0 / 3, 2.0});
  return hn::Add(hn::Mul(e, hn::Set(f32, std::numbers::ln2_v<float>)), hn::Mul(s, series));
}

struct CosSin {
  V cosine, sine;
};

// Of a uniform angle: a whole turn is 2³². Within an eighth of a turn of a multiple of a quarter, five and six terms of
// Taylor's series are right to 4e-8.
HWY_INLINE CosSin cos_sin(Words w) {
  const V quarters = hn::Mul(hn::ConvertTo(f32, hn::BitCast(I(), w)), hn::Set(f32, 0x1p-30f));
  const auto n = hn::NearestInt(quarters);
  const V x = hn::Mul(hn::Sub(quarters, hn::ConvertTo(f32, n)), hn::Set(f32, std::numbers::pi_v<float> / 2));
  const V x2 = hn::Mul(x, x);
  const V s = hn::Mul(x, polynomial(x2, {1.0 / 362880, -1.0 / 5040, 1.0 / 120, -1.0 / 6, 1}));
  const V c = polynomial(x2, {-1.0 / 3628800, 1.0 / 40320, -1.0 / 720, 1.0 / 24, -1.0 / 2, 1});
  // A quarter more swaps them: cos(x + 90°) = −sin x, sin(x + 90°) = cos x.
  const auto one = hn::Set(I(), 1);
  const auto odd = hn::MaskFromVec(hn::BitCast(f32, hn::Sub(hn::Zero(I()), hn::And(n, one))));
  const auto sign = [](hn::Vec<I> count) {
    return hn::BitCast(f32, hn::ShiftLeft<30>(hn::And(count, hn::Set(I(), 2))));
  };
  return {hn::Xor(hn::IfThenElse(odd, s, c), sign(hn::Add(n, one))), hn::Xor(hn::IfThenElse(odd, c, s), sign(n))};
}

// Two independent standard normals (Box–Muller).
HWY_INLINE CosSin normals(Words radius_bits, Words angle_bits) {
  const V radius = hn::Sqrt(hn::Mul(natural_log(unit(radius_bits)), hn::Set(f32, -2.0f)));
  const CosSin turn = cos_sin(angle_bits);
  return {hn::Mul(radius, turn.cosine), hn::Mul(radius, turn.sine)};
}

// Of variance 1: z·√(3/χ²) with χ² of 5 degrees; two of them are −2 ln u each, the fifth the square of the other
// normal.
HWY_INLINE V student_t5(const Words (&w)[4]) {
  const CosSin z = normals(w[0], w[1]);
  const V logs = hn::Add(natural_log(unit(w[2])), natural_log(unit(w[3])));
  const V chi2 = hn::Sub(hn::Mul(z.sine, z.sine), hn::Mul(logs, hn::Set(f32, 2.0f)));
  return hn::Mul(z.cosine, hn::Sqrt(hn::Div(hn::Set(f32, 3.0f), chi2)));
}

// Uniform on ±√3.
HWY_INLINE V uniform(Words w) {
  return hn::Mul(hn::ConvertTo(f32, hn::BitCast(I(), w)), hn::Set(f32, std::numbers::sqrt3_v<float> * 0x1p-31f));
}

HWY_INLINE V sign_of(Words w) {
  return hn::BitCast(f32, hn::Or(hn::And(w, hn::Set(U(), 0x80000000u)), hn::BitCast(U(), hn::Set(f32, 1.0f))));
}

struct Two {
  V q, k;
};

// The components of kLanes pairs.
class Drawer {
 public:
  // Counters of dropout and of initialisers end in other words, so one seed may serve all three.
  static constexpr std::uint32_t kTag = 0x6C616200;
  static constexpr std::int64_t kShared = std::int64_t{1} << 30;  // a place that no component has

  Drawer(const PairLaw& law, std::uint64_t first_pair)
      : law_(law),
        low_(hn::Add(hn::Iota(U(), 0), hn::Set(U(), static_cast<std::uint32_t>(first_pair)))),
        high_(hn::Set(U(), static_cast<std::uint32_t>(first_pair >> 32))),
        own_q_(hn::Set(f32, law.sigma_q * std::sqrt(1 - law.correlation))),
        own_k_(hn::Set(f32, law.sigma_k * std::sqrt(1 - law.correlation))),
        base_{hn::Set(f32, law.mean), hn::Set(f32, law.mean)} {
    if (law.correlation == 0) return;
    const Two shared = standard(kShared)[0];
    const auto weighted = [&](V x, float sigma) {
      return hn::Mul(x, hn::Set(f32, sigma * std::sqrt(law.correlation)));
    };
    base_ = {hn::Add(base_.q, weighted(shared.q, law.sigma_q)), hn::Add(base_.k, weighted(shared.k, law.sigma_k))};
  }

  struct Pair {
    Two at[2];
    const Two& operator[](std::size_t i) const { return at[i]; }
  };

  /// Components `place` and `place` + 1; place is even.
  HWY_INLINE Pair draw(std::int64_t place) const {
    Pair out = standard(place);
    for (Two& x : out.at) x = {hn::Add(base_.q, hn::Mul(own_q_, x.q)), hn::Add(base_.k, hn::Mul(own_k_, x.k))};
    return out;
  }

 private:
  HWY_INLINE void words(std::uint32_t call, Words (&w)[4]) const {
    w[0] = low_, w[1] = high_, w[2] = hn::Set(U(), call),
    w[3] = hn::Set(U(), kTag + static_cast<std::uint32_t>(law_.kind));
    philox4x32(w[0], w[1], w[2], w[3], static_cast<std::uint32_t>(law_.seed),
               static_cast<std::uint32_t>(law_.seed >> 32));
  }

  HWY_INLINE Pair standard(std::int64_t place) const {
    const auto call = static_cast<std::uint32_t>(place);
    Words w[4];
    if (law_.kind == Component::kStudentT5) {  // a call each
      const auto next = [&](std::uint32_t which) {
        words(2 * call + which, w);
        return student_t5(w);
      };
      const V q0 = next(0), k0 = next(1), q1 = next(2), k1 = next(3);
      return {{{q0, k0}, {q1, k1}}};
    }
    words(call / 2, w);
    switch (law_.kind) {
      case Component::kUniform: return {{{uniform(w[0]), uniform(w[1])}, {uniform(w[2]), uniform(w[3])}}};
      case Component::kRademacher: return {{{sign_of(w[0]), sign_of(w[1])}, {sign_of(w[2]), sign_of(w[3])}}};
      case Component::kNormal:
      case Component::kStudentT5: break;
    }
    const CosSin a = normals(w[0], w[1]), b = normals(w[2], w[3]);
    return {{{a.cosine, a.sine}, {b.cosine, b.sine}}};
  }

  const PairLaw& law_;
  Words low_, high_;
  V own_q_, own_k_;
  Two base_;
};

inline void products(const PairLaw& law, std::uint64_t first_pair, std::span<const std::int64_t> dims, float* out) {
  for (std::size_t p = 0; p < kPairsPerBlock; p += kLanes) {
    const Drawer drawer(law, first_pair + p);
    V sum = hn::Zero(f32);
    std::size_t next = 0;
    for (std::int64_t i = 0; next < dims.size(); i += 2) {
      const Drawer::Pair x = drawer.draw(i);
      for (std::int64_t e = 0; e < 2; ++e) {
        sum = hn::Add(sum, hn::Mul(x[static_cast<std::size_t>(e)].q, x[static_cast<std::size_t>(e)].k));
        for (; next < dims.size() && dims[next] == i + e + 1; ++next)
          hn::StoreU(sum, f32, out + next * kPairsPerBlock + p);
      }
    }
  }
}

inline void components(const PairLaw& law, std::uint64_t first_pair, std::int64_t dim, float* q, float* k) {
  for (std::size_t p = 0; p < kPairsPerBlock; p += kLanes) {
    const Drawer drawer(law, first_pair + p);
    for (std::int64_t i = 0; i < dim; i += 2) {
      const Drawer::Pair x = drawer.draw(i);
      for (std::int64_t e = 0; e < 2 && i + e < dim; ++e) {
        const std::size_t at = static_cast<std::size_t>(i + e) * kPairsPerBlock + p;
        hn::StoreU(x[static_cast<std::size_t>(e)].q, f32, q + at);
        hn::StoreU(x[static_cast<std::size_t>(e)].k, f32, k + at);
      }
    }
  }
}

inline DrawKernel draw_kernel() { return {hwy::TargetName(HWY_TARGET), &products, &components}; }

}  // namespace HWY_NAMESPACE
}  // namespace rootdk::lab
HWY_AFTER_NAMESPACE();
