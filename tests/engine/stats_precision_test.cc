// Full statistics of rows of many keys, on every kernel: sums in f32 that run too long, or about the wrong number, have
// no digit of the spread left.
#include <gtest/gtest.h>

#include "support/long_rows.h"

namespace rootdk::test {
namespace {

struct Size {
  std::int64_t rows, keys;
};

/// Every kernel that takes the dtype, on the same rows: those for bf16 alone need a multiple of a dim.
void expect_precise(LongRows kind, DType dtype, const Size& size) {
  const bool causal = size.rows > 1 && static_cast<int>(kind) % 2 == 0;
  for (const std::int64_t dim : {4, 32}) {
    if (dim > 4 && dtype != DType::kBF16) continue;
    const Shape shape{1, 1, 1, size.rows, size.keys, dim, 4, dtype};
    const auto c = long_rows_case(kind, shape, 7);
    c->problem.mask.causal = causal;
    const LongRowsYardstick yardstick(
        *c, [&](std::int64_t i) { return causal ? size.keys - size.rows + i + 1 : size.keys; });
    for (const engine::Kernel& kernel : fast_kernels()) {
      if ((kernel.bf16_step > 0) != (dim > 4) || !engine::misfit(kernel, shape, Machine::here()).empty()) continue;
      SCOPED_TRACE(std::string(name_of(kind)) + ", " + kernel.label() + ", " + rootdk::name_of(dtype) + ", rows " +
                   std::to_string(size.rows) + ", keys " + std::to_string(size.keys));
      EXPECT_EQ(yardstick.judge(run(*c, kernel, {.backward = false})), "");
    }
  }
}

// One row goes through the kernels for narrow tiles, and its keys are split.
TEST(StatsPrecision, OneRowOfAMillionKeys) {
  for (int kind = 0; kind < static_cast<int>(LongRows::kCount); ++kind)
    expect_precise(static_cast<LongRows>(kind), kind % 2 == 0 ? DType::kF32 : DType::kBF16, {1, 1 << 20});
}

TEST(StatsPrecision, WholeTiles) {
  for (int kind = 0; kind < static_cast<int>(LongRows::kCount); ++kind)
    for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16})
      expect_precise(static_cast<LongRows>(kind), dtype, {67, 40000});
}

// The smallest tile that is not narrow, so that a million keys take seconds.
TEST(StatsPrecision, RowsOfAMillionKeys) {
  for (const LongRows kind : {LongRows::kSinkFirst, LongRows::kLarge})
    expect_precise(kind, DType::kBF16, {17, 1 << 20});
}

}  // namespace
}  // namespace rootdk::test
