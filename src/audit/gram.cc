// Compiles gram-inl.h once for each instruction set.
#include "audit/gram.h"

#include "cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "audit/gram.cc"
#include <hwy/foreach_target.h>  // must come before highway.h
#include <hwy/highway.h>

#include "audit/gram-inl.h"

#if HWY_ONCE
#include "cpu/dispatch.h"

namespace rootdk::audit {

HWY_EXPORT(gram_kernel);

const std::vector<GramKernel>& gram_kernels() {
  static const std::vector<GramKernel> kernels = cpu::usable_entries<GramKernel>(HWY_DISPATCH_TABLE(gram_kernel));
  return kernels;
}

}  // namespace rootdk::audit
#endif  // HWY_ONCE
