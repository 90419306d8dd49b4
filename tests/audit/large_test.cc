// 70 billion parameters in bounded memory. large_long_test.cc walks all layers; here it is two of them.
#include <gtest/gtest.h>
#include <omp.h>

#include "audit/sparse.h"
#include "rootdk/audit.h"

namespace rootdk::audit {
namespace {

TEST(Large, SeventyBillionInBoundedMemory) {
  if (kSanitized) GTEST_SKIP() << "sanitizers keep what was freed for a while";
  const test::TemporaryDirectory folder;
  if (const std::string why = write_sparse(folder.path()); !why.empty()) GTEST_SKIP() << why;
  if (peak_memory() == 0) GTEST_SKIP() << "the peak of memory cannot be read here";
  const auto file = checkpoint::Checkpoint::open(folder.path());
  Model model = recognise(file);
  ASSERT_EQ(model.layers.size(), static_cast<std::size_t>(kLayers));
  EXPECT_EQ(model.layers.back().dim_qk, kDim);
  model.layers.resize(2);

  const std::int64_t before = peak_memory();
  const Audit found = audit(file, model, {.spectra = false});
  const std::int64_t grown = peak_memory() - before;
  // A layer's W_q in f32 is 256 MiB. What is kept: a head's rows for each thread (4 MiB), G of a layer's key heads, and
  // a few matrices of 128 KiB for each thread; the rest is for what allocators keep.
  EXPECT_LE(grown, omp_get_max_threads() * std::int64_t{20 << 20} + (64 << 20));
  ASSERT_EQ(found.layers[1].heads.size(), static_cast<std::size_t>(kHeads));
  for (const Head& head : found.layers[1].heads) {
    EXPECT_EQ(head.variance, 0);
    EXPECT_EQ(head.judgement.verdict, theory::Verdict::kUniform);
  }
}

}  // namespace
}  // namespace rootdk::audit
