// Full statistics beside softmax: entropy, Σp², Σp³, and mean, spread, minimum and argmax of the scores, in f32 and for
// any number of keys.
//
// Sums of squares must not be about a place that is far from the scores: with one key of score 60 and a spread of 0.1
// elsewhere, a million squares have no digit of the spread left. So a thread adds up a block about the mean of what it
// has seen before, and adds that to it by Chan, Golub and LeVeque's rule. The first block is about its maximum.
#pragma once

#include "base/row_record.h"
#include "cuda/mma/forward/softmax.cuh"

namespace rootdk::cuda::mma {

/// What a thread has seen of a row's scores: their mean is center + mean, where mean holds what center cannot.
struct Moments {
  float center, mean, m2, min, max;
  int argmax;  ///< first key with the maximum

  __device__ __forceinline__ void begin() {
    center = mean = m2 = 0, min = kInfinityF, max = -kInfinityF, argmax = 0x7fffffff;
  }

  /// Adds Σ and Σ² about the center of n scores to those of `before` others.
  __device__ __forceinline__ void add(float first, float second, float n, float before) {
    const float of_block = first * reciprocal_fast(fmaxf(n, 1.0f)),
                share = n * reciprocal_fast(fmaxf(before + n, 1.0f)), delta = of_block - mean;
    m2 += fmaf(delta * delta, before * share, fmaxf(0.0f, fmaf(-first, of_block, second)));
    mean = fmaf(delta, share, mean);
    const float to = center + mean;
    mean -= to - center, center = to;
  }
};

/// Of one row of a thread. Sums are in base 2 and relative to the row's origin.
struct FullRow {
  float t, sum2, sum3;  ///< Σ w · gap, Σ w², Σ w³
  float count;          ///< keys the thread has seen
  Moments raw, score;   ///< raw: only where scores are not raw ones

  __device__ __forceinline__ void begin() { t = sum2 = sum3 = count = 0, raw.begin(), score.begin(); }
};

/// Where a thread's rows are: in `local`, or in shared memory where registers are short, 33 words from thread to thread
/// so that lanes' words are in different banks.
template <class Tile>
__device__ __forceinline__ FullRow (&full_rows(FullRow (&local)[Tile::kThreadRows]))[Tile::kThreadRows] {
  if constexpr (Tile::kFullWords == 0) {
    return local;
  } else {
    static_assert(sizeof(local) <= 4 * Tile::kFullWords);
    auto* of_block = reinterpret_cast<float*>(shared_memory() + Tile::kLoopBytes) - Tile::kFullWords * Tile::kThreads;
    return *reinterpret_cast<FullRow(*)[Tile::kThreadRows]>(of_block + Tile::kFullWords * thread_now());
  }
}

/// A block's scores of row r into its moments; `hidden`: some may be −∞.
template <int kRow, int kM, int kN>
__device__ __forceinline__ void observe_row(const float (&s)[kM][kN][4], Moments& row, float before, bool hidden,
                                            int first_key, float& n) {
  constexpr int kTile = kRow / 2, kHalf = kRow % 2;
  float top = -kInfinityF, low = row.min, first = 0, second = 0;
#pragma unroll
  for (int j = 0; j < kN; ++j)
#pragma unroll
    for (int e = 0; e < 2; ++e) top = fmaxf(top, s[kTile][j][2 * kHalf + e]);
  if (top > row.max || row.argmax == 0x7fffffff) {
    int key = 0x7fffffff;
#pragma unroll
    for (int j = kN - 1; j >= 0; --j)
#pragma unroll
      for (int e = 1; e >= 0; --e) {
        const float x = s[kTile][j][2 * kHalf + e];
        if (x == top && x != -kInfinityF) key = first_key + 8 * j + 2 * (thread_now() % 4) + e;
      }
    if (key != 0x7fffffff) row.max = top, row.argmax = key;
  }
  if (before == 0) row.center = top == -kInfinityF ? 0 : top;
  const float center = row.center;
  if (hidden) {
    n = 0;
#pragma unroll
    for (int j = 0; j < kN; ++j)
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const float x = s[kTile][j][2 * kHalf + e];
        const bool seen = x != -kInfinityF;
        const float off = seen ? x - center : 0;
        n += seen ? 1 : 0, first += off, second = fmaf(off, off, second), low = fminf(low, seen ? x : low);
      }
  } else {
    n = 2 * kN;
#pragma unroll
    for (int j = 0; j < kN; ++j)
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const float x = s[kTile][j][2 * kHalf + e], off = x - center;
        first += off, second = fmaf(off, off, second), low = fminf(low, x);
      }
  }
  row.min = low;
  row.add(first, second, n, before);
}

template <int kM, int kN>
__device__ __forceinline__ void observe_raw(const float (&s)[kM][kN][4], FullRow (&full)[2 * kM], bool hidden,
                                            int first_key) {
  static_assert(kM == 1);
  float n;
  observe_row<0>(s, full[0].raw, full[0].count, hidden, first_key, n);
  observe_row<1>(s, full[1].raw, full[1].count, hidden, first_key, n);
}

/// A step with full statistics: as softmax_step.
template <int kM, int kN, bool kScores>
__device__ __forceinline__ bool softmax_step_full(float (&s)[kM][kN][4], RowsSoFar<2 * kM, kScores>& rows,
                                                  FullRow (&full)[2 * kM], float scale2, bool hidden, int first_key,
                                                  float (&shrink)[2 * kM]) {
  static_assert(kM == 1);
  float step[2], n[2];
  observe_row<0>(s, full[0].score, full[0].count, hidden, first_key, n[0]);
  observe_row<1>(s, full[1].score, full[1].count, hidden, first_key, n[1]);
  full[0].count += n[0], full[1].count += n[1];
  const bool moved = move_origins(s, rows, scale2, step, shrink);
  if (moved) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float a = shrink[r];
      full[r].t = a * fmaf(step[r], rows.sum[r], full[r].t);
      full[r].sum2 *= a * a, full[r].sum3 *= a * a * a, rows.sum[r] *= a;
    }
  }
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    float sum = 0, t = 0, sum2 = 0, sum3 = 0;
#pragma unroll
    for (int j = 0; j < kN; ++j)
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        float& x = s[0][j][2 * r + e];
        const float gap = Origin<kScores>::gap(x, scale2, rows.origin[r]), w = exp2_fast(gap), square = w * w;
        sum += w, t = fmaf(w, fmaxf(gap, -0x1p60f), t);  // 0 times −∞ is hidden keys'
        sum2 += square, sum3 = fmaf(square, w, sum3);
        x = w;
      }
    rows.sum[r] += sum, full[r].t += t, full[r].sum2 += sum2, full[r].sum3 += sum3;
  }
  return moved;
}

/// The four lanes' moments of a row as a record: `count` is the thread's.
__device__ __forceinline__ base::RowMoments end_moments(const Moments& own, float count) {
  const bool any = count > 0;
  const float reference = quad_max(any ? own.center : -kInfinityF);
  const float offset = any ? (own.center - reference) + own.mean : 0, all = quad_sum(count);
  const float mean = quad_sum(count * offset) / fmaxf(all, 1.0f), off = any ? offset - mean : 0;
  const float m2 = quad_sum(fmaf(count * off, off, own.m2)), min = quad_min(own.min), max = quad_max(own.max);
  int key = own.max == max ? own.argmax : 0x7fffffff;
#pragma unroll
  for (int distance = 1; distance <= 2; distance *= 2) {
    const int other = __shfl_xor_sync(~0u, key, distance);
    key = ::min(key, other);
  }
  base::RowMoments out;
  if (all == 0) return out;
  out.mean = static_cast<double>(reference) + static_cast<double>(mean), out.m2 = static_cast<double>(m2);
  out.min = static_cast<double>(min), out.argmax = key;
  return out;
}

/// A row's full statistics. rows.sum and rows.max are those of end_rows; `shrink` is what it gave.
template <int kRows, bool kScores>
__device__ __forceinline__ base::FullRecord end_full(const RowsSoFar<kRows, kScores>& rows, int r, const FullRow& full,
                                                     float scale2, float shrink, bool transformed, const float* sink) {
  const float max = rows.max[r], a = shrink,
              step = max == -kInfinityF ? 0 : -Origin<kScores>::gap(max, scale2, rows.origin[r]);
  float sum = rows.sum[r], t = a * quad_sum(full.t) + step * sum;  // sums of the quad, now relative to the maximum
  float sum2 = a * a * quad_sum(full.sum2), sum3 = a * a * a * quad_sum(full.sum3);
  t *= kLn2;
  base::FullRecord out = {};
  out.score = end_moments(full.score, full.count);
  out.raw = transformed ? end_moments(full.raw, full.count) : out.score;
  if (sink) {
    const float z = *sink, high = sum > 0 ? fmaxf(max, z) : z, delta = sum > 0 ? max - high : 0;
    const float shrunk = sum > 0 ? expf(delta) : 0, e = expf(z - high);
    t = (sum > 0 ? shrunk * fmaf(delta, sum, t) : 0) + e * (z - high);
    sum = shrunk * sum + e, sum2 = shrunk * shrunk * sum2 + e * e, sum3 = shrunk * shrunk * shrunk * sum3 + e * e * e;
    out.sink_mass = e / sum;
  }
  if (sum > 0) {
    out.entropy = logf(sum) - t / sum;
    out.sum_p2 = sum2 / (sum * sum), out.sum_p3 = sum3 / (sum * sum * sum);
  }
  return out;
}

}  // namespace rootdk::cuda::mma
