// Compiles forward-inl.h once for each instruction set.
#include "cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/fused_forward.cc"
#include <hwy/foreach_target.h>  // must come before highway.h
#include <hwy/highway.h>

#include "cpu/forward-inl.h"
#include "cpu/fused.h"

HWY_BEFORE_NAMESPACE();
namespace rootdk::cpu {
namespace HWY_NAMESPACE {

FusedForward forward_entry() {
  return {hwy::TargetName(HWY_TARGET), kTileRows,        static_cast<std::int64_t>(kTileKeys),
          kLanes,                      &forward_workspace_bytes, &forward};
}

}  // namespace HWY_NAMESPACE
}  // namespace rootdk::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include "cpu/dispatch.h"

namespace rootdk::cpu {

HWY_EXPORT(forward_entry);

const std::vector<FusedForward>& fused_forward() {
  static const std::vector<FusedForward> entries = usable_entries<FusedForward>(HWY_DISPATCH_TABLE(forward_entry));
  return entries;
}

}  // namespace rootdk::cpu
#endif  // HWY_ONCE
