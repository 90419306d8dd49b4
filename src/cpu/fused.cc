// Compiles forward-inl.h and backward-inl.h once for each instruction set and collects them.
#include "cpu/fused.h"

// Scalable vectors (SVE, RVV) cannot be held in arrays, which the register tiles are. SSSE3 adds nothing over the others.
// The sanitizer builds keep two instruction sets, to be done in time.
#ifndef HWY_DISABLED_TARGETS
#ifdef ROOTDK_SANITIZER_TARGETS
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_AVX3 | HWY_AVX3_DL | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | HWY_RVV)
#else
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | HWY_RVV)
#endif
#endif

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/fused.cc"
#include <hwy/foreach_target.h>  // must come before highway.h
#include <hwy/highway.h>

#include "cpu/backward-inl.h"
#include "cpu/forward-inl.h"

HWY_BEFORE_NAMESPACE();
namespace rootdk::cpu {
namespace HWY_NAMESPACE {

std::size_t workspace_bytes(const Plan& plan) {
  base::Arena arena;
  if (plan.pass == Pass::kForward) ForwardWorkspace::take(arena, plan);
  else BackwardWorkspace::take(arena, plan);
  return arena.used();
}

FusedKernel kernel() {
  return {hwy::TargetName(HWY_TARGET), kTileRows, static_cast<std::int64_t>(kTileKeys), &workspace_bytes, &forward, &backward};
}

}  // namespace HWY_NAMESPACE
}  // namespace rootdk::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace rootdk::cpu {

HWY_EXPORT(kernel);

const std::vector<FusedKernel>& fused_kernels() {
  static const std::vector<FusedKernel> kernels = [] {
    std::vector<FusedKernel> found;
    // Lower bits are better targets. The dispatch table is indexed by the bit's place, as Highway's own dispatch does.
    for (std::int64_t targets = hwy::SupportedTargets() & HWY_TARGETS; targets != 0; targets &= targets - 1) {
      const std::int64_t mask = HWY_CHOSEN_TARGET_SHIFT(targets & -targets);
      const std::size_t index = mask ? hwy::Num0BitsBelowLS1Bit_Nonzero64(static_cast<std::uint64_t>(mask)) : HWY_MAX_DYNAMIC_TARGETS + 1;
      if (auto* make = HWY_DISPATCH_TABLE(kernel)[index]) found.push_back(make());
    }
    return found;
  }();
  return kernels;
}

}  // namespace rootdk::cpu
#endif  // HWY_ONCE
