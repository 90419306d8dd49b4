// Compiles forward-inl.h once for each instruction set.
#include "cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/forward/kernel.cc"
#include <hwy/foreach_target.h>  // must come before highway.h
#include <hwy/highway.h>

#include "cpu/forward/forward-inl.h"
#include "cpu/fused.h"

HWY_BEFORE_NAMESPACE();
namespace rootdk::cpu {
namespace HWY_NAMESPACE {

const Bf16Products* no_bf16() { return nullptr; }

template <const Bf16Products* (*kProducts)()>
FusedForward entry(const char* isa) {
  return {
      isa,    hwy::TargetName(HWY_TARGET),         kProducts(),        kTileRows, static_cast<std::int64_t>(kTileKeys),
      kLanes, &forward_workspace_bytes<kProducts>, &forward<kProducts>};
}

// Best first.
std::vector<FusedForward> forward_entries() {
  std::vector<FusedForward> entries = {entry<&no_bf16>(hwy::TargetName(HWY_TARGET))};
#if HWY_TARGET == HWY_AVX3
  if (const Bf16Products* dot = bf16_dot(); dot && dot->pays)
    entries.insert(entries.begin(), entry<&bf16_dot>(dot->isa));
  if (const Bf16Products* amx = bf16_amx()) entries.insert(entries.begin(), entry<&bf16_amx>(amx->isa));
#endif
  return entries;
}

}  // namespace HWY_NAMESPACE
}  // namespace rootdk::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include "cpu/dispatch.h"

namespace rootdk::cpu {

HWY_EXPORT(forward_entries);

const std::vector<FusedForward>& fused_forward() {
  static const std::vector<FusedForward> all = [] {
    std::vector<FusedForward> entries;
    for (const std::vector<FusedForward>& some :
         usable_entries<std::vector<FusedForward>>(HWY_DISPATCH_TABLE(forward_entries)))
      entries.insert(entries.end(), some.begin(), some.end());
    return entries;
  }();
  return all;
}

}  // namespace rootdk::cpu
#endif  // HWY_ONCE
