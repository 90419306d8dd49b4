// Compiles backward-inl.h once for each instruction set.
#include "cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/backward/kernel.cc"
#include <hwy/foreach_target.h>  // must come before highway.h
#include <hwy/highway.h>

#include "cpu/backward/backward-inl.h"
#include "cpu/fused.h"

HWY_BEFORE_NAMESPACE();
namespace rootdk::cpu {
namespace HWY_NAMESPACE {

FusedBackward backward_entry() { return {hwy::TargetName(HWY_TARGET), &backward_workspace_bytes, &backward}; }

}  // namespace HWY_NAMESPACE
}  // namespace rootdk::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include "cpu/dispatch.h"

namespace rootdk::cpu {

HWY_EXPORT(backward_entry);

const std::vector<FusedBackward>& fused_backward() {
  static const std::vector<FusedBackward> entries = usable_entries<FusedBackward>(HWY_DISPATCH_TABLE(backward_entry));
  return entries;
}

}  // namespace rootdk::cpu
#endif  // HWY_ONCE
