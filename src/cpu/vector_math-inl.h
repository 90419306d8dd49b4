// Functions of a vector that the kernels need and Highway 1.0.3 does not have: exp2, tanh, Philox, and moving matrices
// between row-major and lanes-are-rows.
#include <hwy/highway.h>

#include <cstddef>
#include <cstdint>

#include "base/constants.h"
#include "base/philox.h"

#if defined(ROOTDK_CPU_VECTOR_MATH_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ROOTDK_CPU_VECTOR_MATH_INL_H_
#undef ROOTDK_CPU_VECTOR_MATH_INL_H_
#else
#define ROOTDK_CPU_VECTOR_MATH_INL_H_
#endif

// Loops over register arrays must unroll completely: otherwise the accumulators live in memory.
#ifndef ROOTDK_UNROLL
#if HWY_COMPILER_CLANG
#define ROOTDK_UNROLL _Pragma("clang loop unroll(full)")
#else
#define ROOTDK_UNROLL _Pragma("GCC unroll 64")
#endif
#endif

HWY_BEFORE_NAMESPACE();
namespace rootdk::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using F = hn::ScalableTag<float>;
using I = hn::RebindToSigned<F>;
using U = hn::RebindToUnsigned<F>;
using V = hn::Vec<F>;

inline constexpr F f32{};
inline constexpr int kLanes = static_cast<int>(hn::MaxLanes(F()));

using base::kLog2E;

HWY_INLINE V minus_infinity() { return hn::Set(f32, -std::numeric_limits<float>::infinity()); }

// (2^f − 1)/f for |f| ≤ 1/2; coefficients from tools/minimax.py. 1 + f·r(f) is right to 6.6e-8, and exactly 1 at 0.
HWY_INLINE V exp2_ratio(V f) {
  V r = hn::Set(f32, 0x1.416b5ep-13f);
  r = hn::MulAdd(r, f, hn::Set(f32, 0x1.5f082ep-10f));
  r = hn::MulAdd(r, f, hn::Set(f32, 0x1.3b2de0p-7f));
  r = hn::MulAdd(r, f, hn::Set(f32, 0x1.c6af7cp-5f));
  r = hn::MulAdd(r, f, hn::Set(f32, 0x1.ebfbdcp-3f));
  return hn::MulAdd(r, f, hn::Set(f32, 0x1.62e430p-1f));
}

// 2^n for whole n in [−127, 128], where −127 gives 0 and 128 infinity.
HWY_INLINE V power_of_two(hn::Vec<I> n) { return hn::BitCast(f32, hn::ShiftLeft<23>(hn::Add(n, hn::Set(I(), 127)))); }

/// 2^x. Below 2^−126 the result is 0 (so −inf gives 0), NaN stays NaN, exp2(0) is exactly 1.
HWY_INLINE V exp2(V x) {
  const V one = hn::Set(f32, 1.0f);
#if HWY_TARGET <= HWY_AVX3 && HWY_ARCH_X86
  const __m512 f = _mm512_reduce_ps(x.raw, 0x08);  // x − round(x), no exceptions
  const V p = hn::MulAdd(exp2_ratio(V{f}), V{f}, one);
  const __mmask16 keep = _mm512_cmp_ps_mask(x.raw, _mm512_set1_ps(-126.0f), _CMP_NLT_UQ);
  return V{_mm512_maskz_scalef_ps(keep, p.raw, _mm512_sub_ps(x.raw, f))};
#else
  // Max and Min return their second operand when the first is NaN or the comparison fails: keep x second.
  const V nan_kept = hn::IfThenElse(hn::Eq(x, x), hn::Min(hn::Max(x, hn::Set(f32, -127.0f)), hn::Set(f32, 128.0f)), x);
  const hn::Vec<I> n = hn::NearestInt(nan_kept);
  const V f = hn::Sub(nan_kept, hn::ConvertTo(f32, n));
  return hn::Mul(hn::MulAdd(exp2_ratio(f), f, one), power_of_two(n));
#endif
}

/// e^x, by exp2.
HWY_INLINE V exp(V x) { return exp2(hn::Mul(x, hn::Set(f32, kLog2E))); }

/// tanh x = −m/(m + 2) with m = e^{−2|x|} − 1, computed without cancellation near 0. NaN stays NaN.
HWY_INLINE V tanh(V x) {
  const V y = hn::Mul(hn::Abs(x), hn::Set(f32, -2 * kLog2E));
  const V bounded = hn::IfThenElse(hn::Eq(y, y), hn::Max(y, hn::Set(f32, -64.0f)), y);
  const hn::Vec<I> n = hn::NearestInt(bounded);
  const V f = hn::Sub(bounded, hn::ConvertTo(f32, n));
  const V scale = power_of_two(n);
  const V m = hn::MulAdd(hn::Mul(exp2_ratio(f), f), scale, hn::Sub(scale, hn::Set(f32, 1.0f)));
  return hn::CopySign(hn::Div(m, hn::Add(m, hn::Set(f32, 2.0f))), x);
}

// High halves of the 32 × 32 bit products.
HWY_INLINE hn::Vec<U> multiply_high(hn::Vec<U> a, hn::Vec<U> b) {
#if HWY_TARGET == HWY_SCALAR
  return hn::Vec<U>(static_cast<std::uint32_t>((static_cast<std::uint64_t>(a.raw) * b.raw) >> 32));
#else
  const hn::Repartition<std::uint64_t, U> u64;
  const auto even = hn::MulEven(a, b);
  const auto odd = hn::MulEven(hn::BitCast(U(), hn::ShiftRight<32>(hn::BitCast(u64, a))),
                               hn::BitCast(U(), hn::ShiftRight<32>(hn::BitCast(u64, b))));
  const auto high_odd = hn::And(odd, hn::Set(u64, 0xFFFFFFFF00000000ull));
  return hn::BitCast(U(), hn::Or(hn::ShiftRight<32>(even), high_odd));
#endif
}

/// base::philox4x32 with one counter per lane, in place.
HWY_INLINE void philox4x32(hn::Vec<U>& c0, hn::Vec<U>& c1, hn::Vec<U>& c2, hn::Vec<U>& c3, std::uint32_t key0,
                           std::uint32_t key1) {
  const auto multiplier0 = hn::Set(U(), base::kPhiloxMultiplier0);
  const auto multiplier1 = hn::Set(U(), base::kPhiloxMultiplier1);
  for (int round = 0; round < base::kPhiloxRounds; ++round) {
    const auto high0 = multiply_high(c0, multiplier0), low0 = hn::Mul(c0, multiplier0);
    const auto high1 = multiply_high(c2, multiplier1), low1 = hn::Mul(c2, multiplier1);
    c0 = hn::Xor(hn::Xor(high1, c1), hn::Set(U(), key0));
    c1 = low1;
    c2 = hn::Xor(hn::Xor(high0, c3), hn::Set(U(), key1));
    c3 = low0;
    key0 += base::kPhiloxWeyl0;
    key1 += base::kPhiloxWeyl1;
  }
}

/// out[c][r] = in[r][c] for `rows` × `cols`; a 4 × 4 block at a time in 128-bit registers.
HWY_INLINE void transpose(const float* HWY_RESTRICT in, std::size_t in_stride, std::size_t rows, std::size_t cols,
                          float* HWY_RESTRICT out, std::size_t out_stride) {
  std::size_t r = 0;
#if HWY_TARGET != HWY_SCALAR
  const hn::Full128<float> d4;
  const hn::Full128<double> d2;
  for (; r + 4 <= rows; r += 4) {
    const float* from = in + r * in_stride;
    std::size_t c = 0;
    for (; c + 4 <= cols; c += 4) {
      const auto a0 = hn::LoadU(d4, from + c), a1 = hn::LoadU(d4, from + in_stride + c);
      const auto a2 = hn::LoadU(d4, from + 2 * in_stride + c), a3 = hn::LoadU(d4, from + 3 * in_stride + c);
      const auto low01 = hn::BitCast(d2, hn::InterleaveLower(d4, a0, a1));
      const auto low23 = hn::BitCast(d2, hn::InterleaveLower(d4, a2, a3));
      const auto high01 = hn::BitCast(d2, hn::InterleaveUpper(d4, a0, a1));
      const auto high23 = hn::BitCast(d2, hn::InterleaveUpper(d4, a2, a3));
      float* to = out + c * out_stride + r;
      hn::StoreU(hn::BitCast(d4, hn::InterleaveLower(d2, low01, low23)), d4, to);
      hn::StoreU(hn::BitCast(d4, hn::InterleaveUpper(d2, low01, low23)), d4, to + out_stride);
      hn::StoreU(hn::BitCast(d4, hn::InterleaveLower(d2, high01, high23)), d4, to + 2 * out_stride);
      hn::StoreU(hn::BitCast(d4, hn::InterleaveUpper(d2, high01, high23)), d4, to + 3 * out_stride);
    }
    for (; c < cols; ++c)
      for (std::size_t i = 0; i < 4; ++i) out[c * out_stride + r + i] = from[i * in_stride + c];
  }
#endif
  for (; r < rows; ++r)
    for (std::size_t c = 0; c < cols; ++c) out[c * out_stride + r] = in[r * in_stride + c];
}

}  // namespace HWY_NAMESPACE
}  // namespace rootdk::cpu
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
