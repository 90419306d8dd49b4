// All 80 layers of a model in the shape of 70 billion parameters: 12 GB of projections, in the memory of a few heads.
#include <gtest/gtest.h>
#include <omp.h>

#include "audit/sparse.h"
#include "rootdk/audit.h"

namespace rootdk::audit {
namespace {

TEST(Large, WalksAllOfSeventyBillion) {
  if (kSanitized) GTEST_SKIP() << "sanitizers keep what was freed for a while";
  const test::TemporaryDirectory folder;
  if (const std::string why = write_sparse(folder.path()); !why.empty()) GTEST_SKIP() << why;
  if (peak_memory() == 0) GTEST_SKIP() << "the peak of memory cannot be read here";
  const auto file = checkpoint::Checkpoint::open(folder.path());
  const Model model = recognise(file);
  const std::int64_t before = peak_memory();
  const Audit found = audit(file, model, {.spectra = false});
  EXPECT_EQ(found.layers.size(), static_cast<std::size_t>(kLayers));
  // As in large_test.cc, and 5120 heads of findings, some 10 KB each.
  EXPECT_LE(peak_memory() - before,
            omp_get_max_threads() * std::int64_t{20 << 20} + (64 << 20) + kLayers * kHeads * (10 << 10));
}

}  // namespace
}  // namespace rootdk::audit
