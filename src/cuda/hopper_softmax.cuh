// Softmax of a block of scores in the registers of a warpgroup, and the statistics that ride on it.
//
// A thread has a quarter of two rows: s[4j + 2r + e] is row r of its pair, column 8j + 2·(lane % 4) + e. Exponents are
// of base 2 and relative to a maximum that the row had: gap = s·scale2 − origin ≤ kSlack, w = 2^gap. What statistics
// need beyond that is added up from gap and w.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <type_traits>

#include "cuda/hopper_moments.cuh"
#include "cuda/ptx.cuh"
#include "cuda/rows.cuh"

namespace rootdk::gpu {

inline constexpr float kLog2E = 1.4426950408889634f, kLn2 = 0.6931471805599453f;

template <class T>
__device__ __forceinline__ std::uint32_t pack2(float low, float high);
template <>
__device__ __forceinline__ std::uint32_t pack2<__nv_bfloat16>(float low, float high) {
  std::uint32_t out;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(out) : "f"(high), "f"(low));
  return out;
}
template <>
__device__ __forceinline__ std::uint32_t pack2<__half>(float low, float high) {
  std::uint32_t out;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(out) : "f"(high), "f"(low));
  return out;
}

template <class T, int N>
__device__ __forceinline__ void pack(const float (&s)[N], std::uint32_t* p) {
#pragma unroll
  for (int i = 0; i < N / 2; ++i) p[i] = pack2<T>(s[2 * i], s[2 * i + 1]);
}

__device__ __forceinline__ float quad_max(float x) {
  x = fmaxf(x, __shfl_xor_sync(~0u, x, 1));
  return fmaxf(x, __shfl_xor_sync(~0u, x, 2));
}
__device__ __forceinline__ float quad_min(float x) {
  x = fminf(x, __shfl_xor_sync(~0u, x, 1));
  return fminf(x, __shfl_xor_sync(~0u, x, 2));
}
template <class Number>
__device__ __forceinline__ Number quad_sum(Number x) {
  x += __shfl_xor_sync(~0u, x, 1);
  return x + __shfl_xor_sync(~0u, x, 2);
}

/// Lane t of each quarter of a warp gives x[u] and gets what lane u had in x[t].
__device__ __forceinline__ void quad_transpose(std::uint32_t (&x)[4]) {
#pragma unroll
  for (int step = 1; step <= 2; step *= 2) {
    const bool upper = thread_again() & step;
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      if (n & step) continue;
      const std::uint32_t other = __shfl_xor_sync(~0u, upper ? x[n] : x[n + step], step);
      if (upper) x[n] = other;
      else x[n + step] = other;
    }
  }
}

/// Sums and maxima are the thread's own until the end, the base agrees across the quarter.
///
/// Weights are relative to `base`, a maximum that was: it follows the true one only once that is 2^kSlack times as
/// heavy, which after the first block hardly ever happens, so that what was added up before seldom has to be
/// multiplied, and threads seldom have to ask each other for their maxima. Sums of such weights are as exact as others;
/// in the end they are made relative to the maximum.
struct RowPair {
  float max[2], base[2], sum[2];  ///< max and base: of what softmax_step is given; with full statistics the base is
                                  ///< where weights count from, as origin_of says
};

inline constexpr float kSlack = 8;  ///< 2^8 times 2^8 such weights stay in the range of f16

/// What full statistics add, in units of gap; sums are relative to the base.
struct FullPair {
  float t[2], sum2[2], sum3[2];  ///< Σ w·gap, Σ w², Σ w³
  float first[2], second[2];  ///< Σ and Σ² of the window's gaps, or of distances from a centre; in the end the row's
                              ///< mean and squared deviations
  float min[2];               ///< of the scores as they come
  int max_block[2];           ///< first key of the block that the maximum is in
};

/// Keys outside a row's run.
template <int N>
__device__ __forceinline__ void hide(float (&s)[N], const int (&begin)[2], const int (&end)[2], int first_key) {
  const int column = first_key + 2 * (thread_again() % 4);
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const auto keys = static_cast<unsigned>(end[r] - begin[r]);
    const int base = column - begin[r];
#pragma unroll
    for (int j = 0; j < N / 4; ++j)
#pragma unroll
      for (int e = 0; e < 2; ++e)
        if (static_cast<unsigned>(base + 8 * j + e) >= keys) s[4 * j + 2 * r + e] = -kInfinityF;
  }
}

/// What a thread has seen of a pair of rows, this block included. NaN is passed over.
struct Range {
  float max[2], min[2];
};

/// The two rows go side by side and each has two chains.
template <bool kLowest, int N>
__device__ __forceinline__ Range range_of(const float (&s)[N], const float (&max)[2], const float (&min)[2]) {
  float top[4] = {max[0], max[0], max[1], max[1]}, low[4] = {min[0], min[0], min[1], min[1]};
#pragma unroll
  for (int j = 0; j < N / 4; ++j)
#pragma unroll
    for (int x = 0; x < 4; ++x) {
      top[x] = fmaxf(top[x], s[4 * j + x]);
      if constexpr (kLowest) low[x] = fminf(low[x], s[4 * j + x]);
    }
  return {{fmaxf(top[0], top[1]), fmaxf(top[2], top[3])}, {fminf(low[0], low[1]), fminf(low[2], low[3])}};
}

/// The maxima in half as many steps. Above zero the bits of floats are in the order of the floats, so three at a time
/// can be compared as integers. False where that will not do: nothing above zero, or a NaN.
template <int N>
__device__ __forceinline__ bool maxima_by_bits(const float (&s)[N], const float (&max)[2], float (&out)[2]) {
  int top[2][2] = {{__float_as_int(max[0]), __float_as_int(max[0])}, {__float_as_int(max[1]), __float_as_int(max[1])}};
#pragma unroll
  for (int j = 0; j < N / 4; ++j)
#pragma unroll
    for (int r = 0; r < 2; ++r)
      top[r][j % 2] =
          __vimax3_s32(top[r][j % 2], __float_as_int(s[4 * j + 2 * r]), __float_as_int(s[4 * j + 2 * r + 1]));
  bool sure = true;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int most = ::max(top[r][0], top[r][1]);
    sure = sure && static_cast<unsigned>(most) <= 0x7f800000u;
    out[r] = __int_as_float(most);
  }
  return sure;
}

/// Where weights count from, in base 2: 0 while nothing has been seen, so that they are 0 and not NaN.
__device__ __forceinline__ float origin_of(float base, float scale2) { return base == -kInfinityF ? 0 : base * scale2; }

/// Whether a row of the thread has a maximum too far from its base.
__device__ __forceinline__ bool too_far(const float (&max)[2], const RowPair& rows, const float (&scale2)[2]) {
  return (max[0] - rows.base[0]) * scale2[0] > kSlack || (max[1] - rows.base[1]) * scale2[1] > kSlack;
}

/// Moves the base of such rows, all in a warp at once: `shrink` is what all that was added up before is to be
/// multiplied by. Returns whether there is anything to do. The maxima of the quarter agree from here on.
__device__ __forceinline__ bool move_base(RowPair& rows, const float (&max)[2], float (&shrink)[2],
                                          const float (&scale2)[2]) {
#pragma unroll
  for (int r = 0; r < 2; ++r) rows.max[r] = quad_max(max[r]), shrink[r] = 1;
  if (!__any_sync(~0u, too_far(rows.max, rows, scale2))) return false;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    if (!((rows.max[r] - rows.base[r]) * scale2[r] > kSlack)) continue;
    shrink[r] = exp2_approx((rows.base[r] - rows.max[r]) * scale2[r]);
    rows.base[r] = rows.max[r], rows.sum[r] *= shrink[r];
  }
  return true;
}

/// Weights relative to `origin`, in place of exponents.
template <int N>
__device__ __forceinline__ void exponentiate(float (&s)[N], RowPair& rows, const float (&scale2)[2],
                                             const float (&origin)[2]) {
  float sum[2][2] = {{rows.sum[0], 0}, {rows.sum[1], 0}};
#pragma unroll
  for (int j = 0; j < N / 4; ++j)
#pragma unroll
    for (int x = 0; x < 4; ++x) {
      const float w = exp2_approx(fmaf(s[4 * j + x], scale2[x / 2], -origin[x / 2]));
      sum[x / 2][x % 2] += w;
      s[4 * j + x] = w;
    }
#pragma unroll
  for (int r = 0; r < 2; ++r) rows.sum[r] = sum[r][0] + sum[r][1];
}

/// Scores become weights. Returns whether everything before is to be multiplied by `shrink`.
template <bool kByBits, int N>
__device__ __forceinline__ bool softmax_step(float (&s)[N], RowPair& rows, float (&shrink)[2],
                                             const float (&scale2)[2]) {
  Range range;
  bool sure = true, moved = false;
  if constexpr (kByBits) sure = maxima_by_bits(s, rows.max, range.max);
  else range = range_of<false>(s, rows.max, rows.max);
  if (__any_sync(~0u, !sure || too_far(range.max, rows, scale2))) [[unlikely]] {
    if constexpr (kByBits) range = range_of<false>(s, rows.max, rows.max);
    moved = move_base(rows, range.max, shrink, scale2);
  } else {
    rows.max[0] = range.max[0], rows.max[1] = range.max[1];
  }
  const float origin[2] = {origin_of(rows.base[0], scale2[0]), origin_of(rows.base[1], scale2[1])};
  exponentiate(s, rows, scale2, origin);
  return moved;
}

/// tanh, off by some 1e-7: two special functions. The hardware's own tanh is off by 5e-4, which a cap multiplies.
__device__ __forceinline__ float capped(float x) { return 1 - __fdividef(2.0f, 1 + exp2_approx(2 * kLog2E * x)); }

/// tanh(x) / x in x², for |x| ≤ ½: minimax, off by a relative 5.4e-07 at most.
inline constexpr float kTanhOverX[4] = {0.999999463558197f, -0.33326318860054016f, 0.13190296292304993f,
                                        -0.04440220072865486f};

/// Where weights under a soft-cap count from, in base 2. scale2 is cap · log₂e, `inner` c / cap.
__device__ __forceinline__ float capped_origin(float base, float scale2, float inner) {
  return capped(base * inner) * scale2;
}

/// softmax_step under a soft-cap, which is monotone: the maximum is found before it. Where what a thread has of a row
/// is small against the cap a polynomial does, and where that is so in all of a warp it is all there is; else tanh
/// takes two more special functions for each.
template <int N>
__device__ __forceinline__ bool softmax_step_capped(float (&s)[N], RowPair& rows, float (&shrink)[2], float scale2,
                                                    float inner, bool masked, const int (&begin)[2],
                                                    const int (&end)[2], int first_key) {
  float origin[2],
      peak[2] = {0, 0};  // of the thread's part of each row: a row's bits must not depend on its neighbours
#pragma unroll
  for (int j = 0; j < N; ++j) peak[j / 2 % 2] = fmaxf(peak[j / 2 % 2], fabsf(s[j]));
  const Range range = range_of<false>(s, rows.max, rows.max);
  bool far = false;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    rows.max[r] = range.max[r], origin[r] = capped_origin(rows.base[r], scale2, inner);
    far = far || capped_origin(rows.max[r], scale2, inner) - origin[r] > kSlack;
  }
  const bool moved = __any_sync(~0u, far);
  if (moved) [[unlikely]] {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      rows.max[r] = quad_max(rows.max[r]), shrink[r] = 1;
      const float top = capped_origin(rows.max[r], scale2, inner);
      if (!(top - origin[r] > kSlack)) continue;
      shrink[r] = exp2_approx(origin[r] - top);
      rows.base[r] = rows.max[r], rows.sum[r] *= shrink[r], origin[r] = top;
    }
  }
  const auto exponent_of_small = [&](float x, int r) {
    const float unit = scale2 * inner, square = inner * inner, u = x * x;
    const float a0 = kTanhOverX[0] * unit, a1 = kTanhOverX[1] * unit * square,
                a2 = kTanhOverX[2] * unit * square * square, a3 = kTanhOverX[3] * unit * square * square * square;
    return fmaf(x, fmaf(fmaf(fmaf(a3, u, a2), u, a1), u, a0), -origin[r]);
  };
  const bool small[2] = {peak[0] * inner <= 0.5f, peak[1] * inner <= 0.5f};
  if (__all_sync(~0u, small[0] && small[1])) {
    float sum[2][2] = {{rows.sum[0], 0}, {rows.sum[1], 0}};
#pragma unroll
    for (int j = 0; j < N; ++j) s[j] = exp2_approx(exponent_of_small(s[j], j / 2 % 2)), sum[j / 2 % 2][j % 2] += s[j];
#pragma unroll
    for (int r = 0; r < 2; ++r) rows.sum[r] = sum[r][0] + sum[r][1];
    return moved;
  }
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    if (small[r]) {
#pragma unroll
      for (int j = 2 * r; j < N; j += 4) s[j] = exponent_of_small(s[j], r), s[j + 1] = exponent_of_small(s[j + 1], r);
    } else {
#pragma unroll
      for (int j = 2 * r; j < N; j += 4)
        s[j] = fmaf(capped(s[j] * inner), scale2, -origin[r]),
        s[j + 1] = fmaf(capped(s[j + 1] * inner), scale2, -origin[r]);
    }
  }
  if (masked) hide(s, begin, end, first_key);
  constexpr float kAsTheyAre[2] = {1, 1}, kNoOrigin[2] = {0, 0};
  exponentiate(s, rows, kAsTheyAre, kNoOrigin);
  return moved;
}

/// How many of the keys before `end` a thread has.
__device__ __forceinline__ int keys_of_thread(int end) {
  return end / 8 * 2 + ::min(::max(end % 8 - 2 * (thread_again() % 4), 0), 2);
}

/// How many of the keys before `next` a thread has seen of a row.
__device__ __forceinline__ float seen_before(int next, int begin, int end) {
  return static_cast<float>(::max(0, keys_of_thread(::min(next, end)) - keys_of_thread(begin)));
}

/// Where the weights of full statistics count from while nothing has been seen. Finite, so that a hidden score's weight
/// is 0 wherever they count from.
inline constexpr float kNowhere = -0x1p127f;

/// What full statistics have added up of weights, once these are 2^step = a of what they were, and gaps are larger by
/// `step`.
__device__ __forceinline__ void shift_full(FullPair& full, int r, float sum, float step, float a) {
  full.t[r] = a * fmaf(step, sum, full.t[r]);
  full.sum2[r] *= a * a, full.sum3[r] *= a * a * a;
}

/// The first window ends after the first block, of which a thread has seen `count` keys of each row. Returns what the
/// next one is about.
template <bool kApart>
__device__ __forceinline__ About end_first_window(FullPair& full, std::uint32_t all_seen, const RowPair& rows,
                                                  const float (&count)[2]) {
  const std::uint32_t mine = seen_of_thread(all_seen);
  bool far = false;
  const auto end_row = [&]<int kRow>(std::integral_constant<int, kRow>) {
    const SeenScores seen =
        first_window(full.first[kRow], full.second[kRow], count[kRow] == 0 ? 0 : rows.base[kRow], count[kRow]);
    store_seen<kRow>(mine, seen);
    full.first[kRow] = full.second[kRow] = 0;
    far = far || is_far(seen, rows.base[kRow]);
  };
  end_row(std::integral_constant<int, 0>{}), end_row(std::integral_constant<int, 1>{});
  if constexpr (kApart) store_sums(mine, full.first, full.second);
  return __any_sync(~0u, far) ? About::kCenter : About::kOrigin;
}

/// A window ends before key `next`, after a block of kKeys. Returns whether a row of the thread lies far from its base.
template <int kKeys>
__device__ __forceinline__ bool end_window(FullPair& full, std::uint32_t all_seen, About about, const RowPair& rows,
                                           int next) {
  constexpr bool kApart = kAddsApart<kKeys>;
  const std::uint32_t mine = seen_of_thread(all_seen);
  bool far = false;
  int begin[2], end[2];
  load_runs(mine, begin, end);
  if (kApart && about == About::kCenter) load_sums(mine, full.first, full.second);
  float first[2], second[2], base[2];
  if (about == About::kMoved) load_sums(mine, first, second), load_base(mine, base);
  const auto end_row = [&]<int kRow>(std::integral_constant<int, kRow>) {
    SeenScores seen = load_seen<kRow>(mine);
    if (about == About::kMoved)
      add_window(seen, first[kRow], second[kRow], base[kRow], seen_before(next - kKeys, begin[kRow], end[kRow]));
    add_window(seen, full.first[kRow], full.second[kRow], about == About::kCenter ? seen.center : rows.base[kRow],
               seen_before(next, begin[kRow], end[kRow]));
    store_seen<kRow>(mine, seen);
    full.first[kRow] = full.second[kRow] = 0;
    far = far || is_far(seen, rows.base[kRow]);
  };
  end_row(std::integral_constant<int, 0>{}), end_row(std::integral_constant<int, 1>{});
  if constexpr (kApart) store_sums(mine, full.first, full.second);
  return far;
}

/// The last window ends, and the quarter's threads put together what they have seen: the mean relative to `origin`, and
/// squared deviations.
template <bool kApart>
__device__ __forceinline__ void end_last_window(FullPair& full, std::uint32_t all_seen, About about,
                                                const RowPair& rows, const float (&origin)[2]) {
  const std::uint32_t mine = seen_of_thread(all_seen);
  int begin[2], end[2];
  load_runs(mine, begin, end);
  if (kApart && about == About::kCenter) load_sums(mine, full.first, full.second);
  const auto end_row = [&]<int kRow>(std::integral_constant<int, kRow>) {
    const SeenScores seen = load_seen<kRow>(mine);
    const Deviations d =
        last_window(seen, full.first[kRow], full.second[kRow], about == About::kCenter ? seen.center : rows.base[kRow],
                    origin[kRow], seen_before(0x7fffffff, begin[kRow], end[kRow]));
    const float mean = quad_sum(d.sum) * reciprocal(static_cast<float>(::max(1, end[kRow] - begin[kRow])));
    full.first[kRow] = mean, full.second[kRow] = quad_sum(d.about(mean));
  };
  end_row(std::integral_constant<int, 0>{}), end_row(std::integral_constant<int, 1>{});
}

/// Of the blocks that a quarter's threads have their maxima in, the first that has the largest.
__device__ __forceinline__ void agree_on_blocks(FullPair& full, const float (&max)[2]) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    int block = max[r] == quad_max(max[r]) ? full.max_block[r] : 0x7fffffff;
    block = ::min(block, __shfl_xor_sync(~0u, block, 1));
    full.max_block[r] = ::min(block, __shfl_xor_sync(~0u, block, 2));
  }
}

/// What a thread adds up of two scores of a row, which become weights a and b: Σ w² and Σ w³ of two cost five
/// operations, of one three.
template <bool kCentred>
__device__ __forceinline__ void add_pair(float& first, float& second, RowPair& rows, FullPair& full, int r,
                                         float scale2, float center) {
  const float g = fmaf(first, scale2, -rows.base[r]), h = fmaf(second, scale2, -rows.base[r]), a = exp2_approx(g),
              b = exp2_approx(h);
  const float sum = a + b, squares = fmaf(b, b, a * a);
  rows.sum[r] += sum;
  full.t[r] = fmaf(b, h, fmaf(a, g, full.t[r]));
  const float x = kCentred ? fmaf(first, scale2, -center) : g, y = kCentred ? fmaf(second, scale2, -center) : h;
  full.first[r] += x, full.first[r] += y;
  full.second[r] = fmaf(y, y, fmaf(x, x, full.second[r]));
  full.sum2[r] += squares;
  full.sum3[r] = fmaf(sum, fmaf(-a, b, squares), full.sum3[r]);  // a³ + b³ = (a + b)(a² − ab + b²)
  first = a, second = b;
}

/// One that may be hidden.
__device__ __forceinline__ void add_seen(float& s, RowPair& rows, FullPair& full, int r, float scale2) {
  const bool seen = s != -kInfinityF;
  const float all = fmaf(s, scale2, -rows.base[r]), gap = seen ? all : 0, w = exp2_approx(all), square = w * w;
  if (seen) full.min[r] = fminf(full.min[r], s);
  rows.sum[r] += w;
  full.t[r] = fmaf(w, gap, full.t[r]);
  full.first[r] += gap;
  full.second[r] = fmaf(gap, gap, full.second[r]);
  full.sum2[r] += square;
  full.sum3[r] = fmaf(square, w, full.sum3[r]);
  s = w;
}

/// Scores become weights, and all that full statistics need is added up.
template <bool kFirst, bool kMasked, bool kCentred, int N>
__device__ __forceinline__ void add_block(float (&s)[N], RowPair& rows, FullPair& full, const float (&scale2)[2],
                                          std::uint32_t all_seen, bool usual) {
  unsigned low[2] = {__float_as_uint(full.min[0]), __float_as_uint(full.min[1])};
  float center[2] = {0, 0};
  if constexpr (kCentred)
    center[0] = load_center<0>(seen_of_thread(all_seen)), center[1] = load_center<1>(seen_of_thread(all_seen));
#pragma unroll
  for (int j = 0; j < N / 4; ++j)
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float &first = s[4 * j + 2 * r], &second = s[4 * j + 2 * r + 1];
      if constexpr (kMasked) {
        add_seen(first, rows, full, r, scale2[r]), add_seen(second, rows, full, r, scale2[r]);
      } else {
        if constexpr (!kFirst) low[r] = __vimax3_u32(low[r], __float_as_uint(first), __float_as_uint(second));
        add_pair<kCentred>(first, second, rows, full, r, scale2[r], center[r]);
      }
    }
  if (!kMasked && usual) full.min[0] = __uint_as_float(low[0]), full.min[1] = __uint_as_float(low[1]);
}

/// Distances from the centre alone, of a block that no mask touches: what add_block adds up then counts for nothing.
template <int N>
__device__ __forceinline__ void add_apart(const float (&s)[N], const float (&scale2)[2], std::uint32_t all_seen) {
  const std::uint32_t mine = seen_of_thread(all_seen);
  const float center[2] = {load_center<0>(mine), load_center<1>(mine)};
  float first[2], second[2];
  load_sums(mine, first, second);
#pragma unroll
  for (int j = 0; j < N; ++j) {
    const int r = j / 2 % 2;
    const float x = fmaf(s[j], scale2[r], -center[r]);
    first[r] += x, second[r] = fmaf(x, x, second[r]);
  }
  store_sums(mine, first, second);
}

/// softmax_step with full statistics. `kFirst`: nothing was added up before, and the base goes where this block's
/// maximum is. `about`: of the window that this block belongs to; of the next one after the first block.
template <bool kFirst, bool kMasked, int N>
__device__ __forceinline__ bool softmax_step_full(float (&s)[N], RowPair& rows, FullPair& full, std::uint32_t all_seen,
                                                  About& about, float (&shrink)[2], const float (&scale2)[2],
                                                  int first_key) {
  if constexpr (kMasked) {
    int begin[2], end[2];
    load_runs(seen_of_thread(all_seen), begin, end);
    hide(s, begin, end, first_key);
  }
  constexpr bool kApart = kAddsApart<2 * N>;
  if constexpr (kApart && !kFirst && !kMasked)
    if (about == About::kCenter) add_apart(s, scale2, all_seen);
  Range range;
  bool sure = maxima_by_bits(s, rows.max, range.max);
  // Once a thread has seen scores below zero the lowest is found by bits, too, beside the weights: another unit of the
  // processor does that.
  if constexpr (!kMasked) sure = sure && full.min[0] < 0 && full.min[1] < 0;
  const auto too_far = [&](int r, float max) { return fmaf(max, scale2[r], -rows.base[r]) > kSlack; };
  const bool usual = !kFirst && !__any_sync(~0u, !sure || too_far(0, range.max[0]) || too_far(1, range.max[1]));
  const auto note_blocks = [&] {
#pragma unroll
    for (int r = 0; r < 2; ++r)
      if (range.max[r] > rows.max[r]) full.max_block[r] = first_key;
  };
  bool moved = false;
  if (usual) {
    note_blocks();
    rows.max[0] = range.max[0], rows.max[1] = range.max[1];
  } else {
    range = range_of<!kMasked>(s, rows.max, full.min);
    note_blocks();
    agree_on_blocks(full, range.max);
    if constexpr (!kMasked) full.min[0] = range.min[0], full.min[1] = range.min[1];
#pragma unroll
    for (int r = 0; r < 2; ++r) rows.max[r] = quad_max(range.max[r]);
    moved = __any_sync(~0u, too_far(0, rows.max[0]) || too_far(1, rows.max[1]));
    if (moved) {
      if (!kFirst && about != About::kCenter) {
        store_sums(seen_of_thread(all_seen), full.first, full.second), store_base(seen_of_thread(all_seen), rows.base);
        full.first[0] = full.first[1] = full.second[0] = full.second[1] = 0;
        about = About::kMoved;
      }
      float step[2] = {0, 0};
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const float to = __fmul_rn(rows.max[r], scale2[r]);
        if (too_far(r, rows.max[r])) step[r] = rows.base[r] - to, rows.base[r] = to;
        shrink[r] = exp2_approx(step[r]);
        if constexpr (!kFirst) shift_full(full, r, rows.sum[r], step[r], shrink[r]), rows.sum[r] *= shrink[r];
      }
    }
  }
  if constexpr (kFirst || kMasked || kApart) {
    add_block<kFirst, kMasked, false>(s, rows, full, scale2, all_seen, usual);
  } else {
    if (about == About::kCenter) [[unlikely]]
      add_block<kFirst, kMasked, true>(s, rows, full, scale2, all_seen, usual);
    else add_block<kFirst, kMasked, false>(s, rows, full, scale2, all_seen, usual);
  }
  if constexpr (kFirst) {
    float count[2] = {N / 2, N / 2};
    if constexpr (kMasked) {
      int begin[2], end[2];
      load_runs(seen_of_thread(all_seen), begin, end);
#pragma unroll
      for (int r = 0; r < 2; ++r) count[r] = seen_before(first_key + 2 * N, begin[r], end[r]);
    }
    about = end_first_window<kApart>(full, all_seen, rows, count);
  }
  return moved;
}

/// A row's full statistics, once its thread has the sums of the quarter. `origin` and the sums are of base 2.
__device__ __forceinline__ base::FullRecord finish_full(const ProblemView& p, const FullPair& full, int r,
                                                        std::int64_t h, float sum, float origin, int visible) {
  base::FullRecord record = {};
  const double ln2 = kLn2;
  if (visible > 0) {
    record.raw.mean = ln2 * (static_cast<double>(origin) + static_cast<double>(full.first[r]));
    record.raw.m2 = static_cast<double>(kLn2 * kLn2 * full.second[r]);
    record.raw.min = static_cast<double>(full.min[r] * static_cast<float>(factor_of(p, h)));
    record.raw.argmax = full.max_block[r];  // find_keys finds the key
  }
  record.score = record.raw;
  float sums = sum, t = kLn2 * full.t[r], sum2 = full.sum2[r], sum3 = full.sum3[r];
  if (p.sink) {
    const float z = p.sink[h], largest = origin * kLn2, high = sums > 0 ? fmaxf(largest, z) : z,
                delta = sums > 0 ? largest - high : 0;
    const float shrunk = sums > 0 ? expf(delta) : 0, e = expf(z - high);
    t = shrunk * fmaf(delta, sums, t) + e * (z - high);
    sums = shrunk * sums + e, sum2 = shrunk * shrunk * sum2 + e * e, sum3 = shrunk * shrunk * shrunk * sum3 + e * e * e;
    record.sink_mass = e / sums;
  }
  if (sums > 0) {
    const float inverse = __fdividef(1.0f, sums);
    record.entropy = __logf(sums) - t * inverse;  // sums are 1 or more
    record.sum_p2 = sum2 * inverse * inverse;
    record.sum_p3 = sum3 * inverse * inverse * inverse;
  }
  return record;
}

}  // namespace rootdk::gpu
