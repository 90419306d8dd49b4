// Which instruction sets the fused kernels are compiled for. Included before any Highway header.
#pragma once

// Scalable vectors (SVE, RVV) cannot be held in arrays, which the register tiles are. SSSE3 adds nothing over the
// others. The sanitizer builds keep two, the compiler's own and AVX2 (on x86), to be done in time.
#ifndef HWY_DISABLED_TARGETS
#ifdef ROOTDK_SANITIZER_TARGETS
#define HWY_DISABLED_TARGETS \
  (HWY_SSSE3 | HWY_SSE4 | HWY_AVX3 | HWY_AVX3_DL | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | HWY_RVV)
#else
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | HWY_RVV)
#endif
#endif
