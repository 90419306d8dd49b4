// A model that is run in bounded memory. Among the long tests because these are built without sanitizers, which keep
// what was freed.
#include <gtest/gtest.h>
#include <omp.h>

#include "audit/sparse.h"
#include "rootdk/audit.h"

namespace rootdk::audit {
namespace {

// Twelve layers of 64 MiB in f32, of which there is never more than the larger half of one.
TEST(AuditRun, NeverHasMoreThanALayerInMemory) {
  if (kSanitized) GTEST_SKIP() << "sanitizers keep what was freed for a while";
  if (peak_memory() == 0) GTEST_SKIP() << "the peak of memory cannot be read here";
  constexpr std::int64_t kWide = 1024, kInner = 4096, kDeep = 12;
  const test::TemporaryDirectory folder;
  Sparse model;
  model.matrix("model.embed_tokens.weight", 100, kWide);
  for (std::int64_t layer = 0; layer < kDeep; ++layer) {
    const std::string at = "model.layers." + std::to_string(layer) + ".";
    for (const char* name : {"q", "k", "v", "o"}) model.matrix(at + "self_attn." + name + "_proj.weight", kWide, kWide);
    model.matrix(at + "mlp.gate_proj.weight", kInner, kWide);
    model.matrix(at + "mlp.up_proj.weight", kInner, kWide);
    model.matrix(at + "mlp.down_proj.weight", kWide, kInner);
    for (const char* name : {"input_layernorm", "post_attention_layernorm"})
      model.add(at + name + ".weight", "1024", kWide);
  }
  model.add("model.norm.weight", "1024", kWide);
  model.header += "}";
  const std::filesystem::path path = folder.path() / "model.safetensors";
  test::write_file(path, test::Bytes().number(std::uint64_t{model.header.size()}).raw(model.header).text());
  test::write_file(folder.path() / "config.json",
                   R"({"model_type": "llama", "num_attention_heads": 16, "num_key_value_heads": 16})");
  std::error_code error;
  std::filesystem::resize_file(path, 8 + model.header.size() + model.bytes, error);
  if (error) GTEST_SKIP() << "no file with holes can be made here: " << error.message();

  const auto file = checkpoint::Checkpoint::open(folder.path());
  const Model recognised = recognise(file);
  ASSERT_TRUE(recognised.network.has_value()) << recognised.why_not_run;
  RunInput input{1, 64, std::vector<std::int64_t>(64, 5), {}, 0};
  const std::int64_t before = peak_memory();
  const auto found = run(file, recognised, input);
  const std::int64_t grown = peak_memory() - before;
  EXPECT_EQ(found.layers.size(), static_cast<std::size_t>(kDeep));
  const std::int64_t said = bytes_to_run(recognised, input);
  EXPECT_GE(said, 3 * kWide * kInner * 4);
  EXPECT_LE(said,
            3 * kWide * kInner * 4 + (4 << 20) + kDeep * 16 * (16 << 10));  // tokens; statistics of 16 heads a layer
  EXPECT_LE(grown, said + (24 << 20) +
                       omp_get_max_threads() * std::int64_t{8 << 20});  // packed operands, and what allocators keep
  EXPECT_GE(grown, said / 2);
}

}  // namespace
}  // namespace rootdk::audit
