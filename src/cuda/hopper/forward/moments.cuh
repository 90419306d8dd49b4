// Mean and spread of a row's scores beside its softmax, in f32 and for any number of keys.
//
// Σ gap and Σ gap² cost nothing that softmax does not have, but they are about the row's base, which may be far from
// the scores: with one key of score 60 and a spread of 0.1 elsewhere, a sum of squares of a million has no digit of the
// spread left. So they run over windows of blocks. At a window's end a thread adds what it has of it to what it saw
// before (Chan, Golub and LeVeque), which lies in shared memory since nothing else needs it. Where the base turns out
// to be far from a row of a warp, the warp goes on about each thread's own mean instead: one instruction more for
// each score, in a loop of its own, or three.
//
// What f32 loses of the variance, simulated for 128 to a million keys: under 4e-5 with a sink of 60 anywhere, outliers
// of both signs, 1e4 + noise, drifts and steps; 4e-4 at worst, where each thread has a key of 60 in its first block and
// a spread of 0.1 after it.
#pragma once

#include "cuda/common/ptx.cuh"

namespace rootdk::cuda {

inline constexpr int kWindow = 32;  ///< blocks of a window; the first ends after one block, the second after a quarter
inline constexpr float kFarFromBase = 128;  ///< squared distance of base and mean, in variances: of 3000 warps of
                                            ///< normal scores none is as far after a block of 128 keys

/// The scores of a row that a thread has seen before the window, in base 2: their mean is center + mean.
struct SeenScores {
  float count, center, mean, m2;
};

/// What the Σ and Σ² of a warp's window are about.
enum class About {
  kOrigin,     ///< where weights count from
  kLastBlock,  ///< the same, and the window ends after this block
  kMoved,      ///< the same; what was before this block is laid aside with where weights counted from then
  kCenter,     ///< SeenScores::center; not in masked blocks, which then have a window each
};

/// What a consumer's thread keeps in shared memory, in bytes from its place: SeenScores of its two rows, their runs of
/// keys, Σ and Σ² of each that are laid aside or added up apart, and an int and two floats laid aside. At this distance
/// eight threads that read 16 bytes each find them in different banks.
inline constexpr int kSeenBytes = 80;

__device__ __forceinline__ std::uint32_t seen_of_thread(std::uint32_t all) {
  return all + (thread_again() - 128) * kSeenBytes;
}

template <int kRow>
__device__ __forceinline__ SeenScores load_seen(std::uint32_t of_thread) {
  SeenScores x;
  asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4 + %5];"
               : "=f"(x.count), "=f"(x.center), "=f"(x.mean), "=f"(x.m2)
               : "r"(of_thread), "n"(16 * kRow));
  return x;
}
template <int kRow>
__device__ __forceinline__ void store_seen(std::uint32_t of_thread, const SeenScores& x) {
  asm volatile("st.shared.v4.f32 [%4 + %5], {%0, %1, %2, %3};" ::"f"(x.count), "f"(x.center), "f"(x.mean), "f"(x.m2),
               "r"(of_thread), "n"(16 * kRow));
}
template <int kRow>
__device__ __forceinline__ float load_center(std::uint32_t of_thread) {
  float x;
  asm volatile("ld.shared.f32 %0, [%1 + %2];" : "=f"(x) : "r"(of_thread), "n"(16 * kRow + 4));
  return x;
}
__device__ __forceinline__ void load_runs(std::uint32_t of_thread, int (&begin)[2], int (&end)[2]) {
  asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4 + 32];"
               : "=r"(begin[0]), "=r"(end[0]), "=r"(begin[1]), "=r"(end[1])
               : "r"(of_thread));
}
__device__ __forceinline__ void store_runs(std::uint32_t of_thread, const int (&begin)[2], const int (&end)[2]) {
  asm volatile("st.shared.v4.b32 [%4 + 32], {%0, %1, %2, %3};" ::"r"(begin[0]), "r"(end[0]), "r"(begin[1]), "r"(end[1]),
               "r"(of_thread));
}

/// A number that the loop over blocks does not need.
__device__ __forceinline__ int load_aside(std::uint32_t of_thread) {
  int x;
  asm volatile("ld.shared.b32 %0, [%1 + 64];" : "=r"(x) : "r"(of_thread));
  return x;
}
__device__ __forceinline__ void store_aside(std::uint32_t of_thread, int x) {
  asm volatile("st.shared.b32 [%0 + 64], %1;" ::"r"(of_thread), "r"(x));
}

__device__ __forceinline__ void load_sums(std::uint32_t of_thread, float (&first)[2], float (&second)[2]) {
  asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4 + 48];"
               : "=f"(first[0]), "=f"(first[1]), "=f"(second[0]), "=f"(second[1])
               : "r"(of_thread));
}
__device__ __forceinline__ void store_sums(std::uint32_t of_thread, const float (&first)[2], const float (&second)[2]) {
  asm volatile("st.shared.v4.f32 [%4 + 48], {%0, %1, %2, %3};" ::"f"(first[0]), "f"(first[1]), "f"(second[0]),
               "f"(second[1]), "r"(of_thread));
}
__device__ __forceinline__ void load_base(std::uint32_t of_thread, float (&base)[2]) {
  asm volatile("ld.shared.v2.f32 {%0, %1}, [%2 + 72];" : "=f"(base[0]), "=f"(base[1]) : "r"(of_thread));
}
__device__ __forceinline__ void store_base(std::uint32_t of_thread, const float (&base)[2]) {
  asm volatile("st.shared.v2.f32 [%2 + 72], {%0, %1};" ::"f"(base[0]), "f"(base[1]), "r"(of_thread));
}

/// Whether a block's distances from the centre are added up in a loop before that of the weights: where that one has no
/// registers left, or is shorter and faster without.
template <int kBlockKeys>
inline constexpr bool kAddsApart = kBlockKeys <= 80;

__device__ __forceinline__ float reciprocal(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

/// The mean moves into the center but for what that cannot hold: squares are about it from here on.
__device__ __forceinline__ void center_on_mean(SeenScores& seen) {
  const float center = seen.center + seen.mean;
  seen.mean -= center - seen.center, seen.center = center;
}

/// Whether sums about `origin` would lose the spread.
__device__ __forceinline__ bool is_far(const SeenScores& seen, float origin) {
  const float distance = (origin - seen.center) - seen.mean;
  return distance * distance * seen.count > kFarFromBase * seen.m2;
}

/// The scores of a first block.
__device__ __forceinline__ SeenScores first_window(float first, float second, float origin, float count) {
  const float mean = first * reciprocal(fmaxf(count, 1.0f));
  SeenScores seen{count, origin, mean, fmaxf(0.0f, fmaf(-first, mean, second))};
  center_on_mean(seen);
  return seen;
}

/// Adds a window: Σ and Σ² about `about`, and now `count` scores in all.
__device__ __forceinline__ void add_window(SeenScores& seen, float first, float second, float about, float count) {
  if (seen.count == 0) seen.center = about, seen.mean = 0;  // it may be as far away as numbers go
  const float n = count - seen.count, mean = first * reciprocal(fmaxf(n, 1.0f)),
              share = n * reciprocal(fmaxf(count, 1.0f));
  const float delta = ((about - seen.center) + mean) - seen.mean;
  seen.m2 += fmaf(delta * delta, seen.count * share, fmaxf(0.0f, fmaf(-first, mean, second)));
  seen.mean = fmaf(delta, share, seen.mean), seen.count = count;
  center_on_mean(seen);
}

/// What a thread has seen in all, in two parts.
struct Deviations {
  float count[2], mean[2], m2, sum;  ///< means are relative to `origin`, the sum is of all scores so
  __device__ __forceinline__ float about(float all) const {
    const float first = mean[0] - all, second = mean[1] - all;
    return fmaf(count[0] * first, first, fmaf(count[1] * second, second, m2));
  }
};

/// With the last window, as add_window.
__device__ __forceinline__ Deviations last_window(const SeenScores& seen, float first, float second, float about,
                                                  float origin, float count) {
  const float n = count - seen.count, mean = first * reciprocal(fmaxf(n, 1.0f));
  Deviations d{{seen.count, n},
               {(seen.center - origin) + seen.mean, (about - origin) + mean},
               seen.m2 + fmaxf(0.0f, fmaf(-first, mean, second)),
               0};
  d.sum = fmaf(d.count[0], d.mean[0], d.count[1] * d.mean[1]);
  return d;
}

}  // namespace rootdk::cuda
