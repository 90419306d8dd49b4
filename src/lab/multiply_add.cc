// Independent chains of multiply-adds, enough to cover latency times ports and few enough for the registers.
#include "lab/multiply_add.h"

#include "cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "lab/multiply_add.cc"
#include <hwy/foreach_target.h>  // must come before highway.h
#include <hwy/highway.h>

#include "cpu/vector_math-inl.h"  // ROOTDK_UNROLL

HWY_BEFORE_NAMESPACE();
namespace rootdk::lab {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

constexpr int kChains = HWY_TARGET <= HWY_AVX3 ? 24 : 12;

float multiply_add(std::int64_t rounds, float x) {
  const hn::ScalableTag<float> d;
  const auto factor = hn::Set(d, 0.75f), step = hn::Set(d, x);
  hn::Vec<decltype(d)> chain[kChains];
  for (int i = 0; i < kChains; ++i) chain[i] = hn::Set(d, x + static_cast<float>(i));
  for (std::int64_t round = 0; round < rounds; ++round) {
    ROOTDK_UNROLL
    for (int i = 0; i < kChains; ++i) chain[i] = hn::MulAdd(chain[i], factor, step);
  }
  for (int i = 1; i < kChains; ++i) chain[0] = hn::Add(chain[0], chain[i]);
  return hn::GetLane(chain[0]);
}

MultiplyAdd multiply_add_kernel() {
  return {hwy::TargetName(HWY_TARGET), 2.0 * kChains * static_cast<double>(hn::Lanes(hn::ScalableTag<float>())),
          &multiply_add};
}

}  // namespace HWY_NAMESPACE
}  // namespace rootdk::lab
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include "cpu/dispatch.h"

namespace rootdk::lab {

HWY_EXPORT(multiply_add_kernel);

const std::vector<MultiplyAdd>& multiply_add_kernels() {
  static const std::vector<MultiplyAdd> kernels =
      cpu::usable_entries<MultiplyAdd>(HWY_DISPATCH_TABLE(multiply_add_kernel));
  return kernels;
}

}  // namespace rootdk::lab
#endif  // HWY_ONCE
