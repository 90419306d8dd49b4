// Compiles draws-inl.h once for each instruction set.
#include "lab/draws.h"

#include "cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "lab/draws.cc"
#include <hwy/foreach_target.h>  // must come before highway.h
#include <hwy/highway.h>

#include "lab/draws-inl.h"

#if HWY_ONCE
#include "cpu/dispatch.h"

namespace rootdk::lab {

HWY_EXPORT(draw_kernel);

const std::vector<DrawKernel>& draw_kernels() {
  static const std::vector<DrawKernel> kernels = cpu::usable_entries<DrawKernel>(HWY_DISPATCH_TABLE(draw_kernel));
  return kernels;
}

}  // namespace rootdk::lab
#endif  // HWY_ONCE
