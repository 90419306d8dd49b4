// The multiply-add peak: what no attention on these threads can pass.
#pragma once

#include <cstdint>
#include <vector>

namespace rootdk::lab {

struct MultiplyAdd {
  const char* isa;
  double operations;  ///< floating-point operations a round, on one thread
  float (*run)(std::int64_t rounds, float x);
};

/// For the instruction sets this machine can run, best first.
const std::vector<MultiplyAdd>& multiply_add_kernels();

}  // namespace rootdk::lab
