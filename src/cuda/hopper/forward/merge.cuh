// Split-KV, rows whose keys were split: how two parts become one. A block that takes several splits of a row and the
// kernel that merges the rest do the same operations in the same order, so that a row's bits do not depend on who did
// it.
#pragma once

#include "cuda/common/ptx.cuh"
#include "cuda/common/rows.cuh"

namespace rootdk::cuda {

/// Splits are merged one after another within a group of so many, then groups one after another.
inline constexpr int kGroupSplits = 8;

/// What is known of a row after some of its keys; its values are Σ weight·v, relative to `max`.
struct PartRow {
  float max, sum, raw_max;  ///< max: in base 2; −∞ where no key was seen
  int visible;

  __device__ __forceinline__ static PartRow of(const float4& x) { return {x.x, x.y, x.z, __float_as_int(x.w)}; }
  __device__ __forceinline__ float4 packed() const { return {max, sum, raw_max, __int_as_float(visible)}; }
};

/// What the values of both are multiplied by: fmaf(theirs, other's value, mine·own value).
struct PartShares {
  float mine, theirs;
  __device__ __forceinline__ float operator()(float own, float other) const { return fmaf(theirs, other, mine * own); }
};

__device__ __forceinline__ PartShares merge(PartRow& row, const PartRow& other) {
  const float max = fmaxf(row.max, other.max), origin = max == -kInfinityF ? 0 : max;
  const PartShares shares{exp2_approx(row.max - origin), exp2_approx(other.max - origin)};
  row = {max, shares(row.sum, other.sum), fmaxf(row.raw_max, other.raw_max), row.visible + other.visible};
  return shares;
}

}  // namespace rootdk::cuda
