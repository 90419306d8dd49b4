// Products of rows with rows, G = W·Wᵀ of one head above all: f32 products in short sums, added up in double.
#pragma once

#include <cstdint>
#include <vector>

namespace rootdk::audit {

/// Rows are read in whole vectors of any instruction set, so their distance is a multiple of this, and what is beyond
/// the width is 0.
inline constexpr std::int64_t kRowStep = 16;

constexpr std::int64_t row_stride(std::int64_t width) { return (width + kRowStep - 1) / kRowStep * kRowStep; }

/// Columns whose products are added in f32 before double takes over: so many numbers, then their lanes, then their
/// blocks.
inline constexpr std::int64_t kGramBlock = 512;

struct GramKernel {
  const char* isa;
  /// out [rows, rows] ← w·wᵀ, w [rows, stride]. Half of it is computed.
  void (*run)(std::int64_t rows, std::int64_t stride, const float* w, double* out);
  /// out [rows, cols] ← a·bᵀ, a [rows, stride], b [cols, stride].
  void (*product)(std::int64_t rows, std::int64_t cols, std::int64_t stride, const float* a, const float* b,
                  double* out);
};

/// For the instruction sets this machine can run, best first.
const std::vector<GramKernel>& gram_kernels();

inline void product(std::int64_t rows, std::int64_t cols, std::int64_t stride, const float* a, const float* b,
                    double* out) {
  gram_kernels().front().product(rows, cols, stride, a, b, out);
}

inline void gram(std::int64_t rows, std::int64_t stride, const float* w, double* out) {
  gram_kernels().front().run(rows, stride, w, out);
}

}  // namespace rootdk::audit
