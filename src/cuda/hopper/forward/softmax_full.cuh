// The softmax step with full statistics: entropy, Σp², Σp³ and the moments of the scores, added up beside the weights.
#pragma once

#include <type_traits>

#include "cuda/hopper/forward/moments.cuh"
#include "cuda/hopper/forward/softmax.cuh"

namespace rootdk::cuda {

/// What full statistics add, in units of gap; sums are relative to the base.
struct FullPair {
  float t[2], sum2[2], sum3[2];  ///< Σ w·gap, Σ w², Σ w³
  float first[2], second[2];  ///< Σ and Σ² of the window's gaps, or of distances from a centre; in the end the row's
                              ///< mean and squared deviations
  float min[2];               ///< of the scores as they come
  int max_block[2];           ///< first key of the block that the maximum is in
};

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

/// The last window ends, and the quad's lanes put together what they have seen: the mean relative to `origin`, and
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

/// Of the blocks that a quad's lanes have their maxima in, the first that has the largest.
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
/// maximum is. `about`: of the window that this block belongs to, which is no centre without kCentres; of the next one
/// after the first block.
template <bool kFirst, bool kMasked, bool kCentres, int N>
__device__ __forceinline__ bool softmax_step_full(float (&s)[N], RowPair& rows, FullPair& full, std::uint32_t all_seen,
                                                  About& about, float (&shrink)[2], const float (&scale2)[2],
                                                  int first_key) {
  if constexpr (kMasked) {
    int begin[2], end[2];
    load_runs(seen_of_thread(all_seen), begin, end);
    hide(s, begin, end, first_key);
  }
  constexpr bool kApart = kAddsApart<2 * N>;
  if constexpr (kApart && kCentres && !kMasked)
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
      if (!kFirst && (!kCentres || about != About::kCenter)) {
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
  if constexpr (!kCentres || kMasked || kApart) {
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

/// A row's full statistics, once its thread has the sums of the quad. `origin` and the sums are of base 2.
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

}  // namespace rootdk::cuda
