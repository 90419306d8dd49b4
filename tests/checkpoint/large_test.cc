// A model of 70 billion parameters on disk, all but a few rows of it a hole: opened, listed and a layer of it read in
// little memory.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <string>

#include "rootdk/checkpoint/checkpoint.h"
#include "support/files.h"

namespace rootdk::checkpoint {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kLayers = 80, kWidth = 8192, kKeys = 1024, kInner = 28672, kVocabulary = 128256;

// A file in the shape of Llama 3 70B, bf16: header and holes.
struct Sparse {
  std::string header;
  std::uint64_t bytes = 0;

  void add(const std::string& name, std::int64_t rows, std::int64_t columns) {
    const std::uint64_t end = bytes + static_cast<std::uint64_t>(2 * rows * columns);
    header += (header.empty() ? "{\"" : ",\"") + name + R"(":{"dtype":"BF16","shape":[)" + std::to_string(rows) + "," +
              std::to_string(columns) + R"(],"data_offsets":[)" + std::to_string(bytes) + "," + std::to_string(end) +
              "]}";
    bytes = end;
  }
};

Sparse model_of_70b() {
  Sparse model;
  model.add("model.embed_tokens.weight", kVocabulary, kWidth);
  for (std::int64_t layer = 0; layer < kLayers; ++layer) {
    const std::string prefix = "model.layers." + std::to_string(layer) + ".";
    model.add(prefix + "self_attn.q_proj.weight", kWidth, kWidth);
    model.add(prefix + "self_attn.k_proj.weight", kKeys, kWidth);
    model.add(prefix + "self_attn.v_proj.weight", kKeys, kWidth);
    model.add(prefix + "self_attn.o_proj.weight", kWidth, kWidth);
    model.add(prefix + "mlp.gate_proj.weight", kInner, kWidth);
    model.add(prefix + "mlp.up_proj.weight", kInner, kWidth);
    model.add(prefix + "mlp.down_proj.weight", kWidth, kInner);
    model.add(prefix + "input_layernorm.weight", 1, kWidth);
    model.add(prefix + "post_attention_layernorm.weight", 1, kWidth);
  }
  model.add("model.norm.weight", 1, kWidth);
  model.add("lm_head.weight", kVocabulary, kWidth);
  model.header += "}";
  return model;
}

// The most memory this process ever had, in bytes.
std::int64_t peak_memory() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);)
    if (line.starts_with("VmHWM:")) return std::stoll(line.substr(6)) * 1024;
  return 0;
}

TEST(Large, SeventyBillionInBoundedMemory) {
  const test::TemporaryDirectory directory;
  const fs::path path = directory / "model.safetensors";
  Sparse model = model_of_70b();
  const std::uint64_t begin = 8 + model.header.size(), size = begin + model.bytes;
  test::write_file(path, test::Bytes().number(std::uint64_t{model.header.size()}).raw(model.header).text());
  std::error_code error;
  fs::resize_file(path, size, error);
  if (error) GTEST_SKIP() << "no file of " << size << " bytes with holes can be made here: " << error.message();
  struct stat status = {};
  ASSERT_EQ(stat(path.c_str(), &status), 0);
  if (status.st_blocks * 512 > (1 << 24)) GTEST_SKIP() << "this file system has no holes";
  if (peak_memory() == 0) GTEST_SKIP() << "the peak of memory cannot be read here";

  const std::int64_t before = peak_memory();
  const Checkpoint checkpoint = Checkpoint::open(path);
  EXPECT_EQ(checkpoint.tensors().size(), 9u * kLayers + 3);
  std::int64_t parameters = 0;
  std::vector<std::string> layer;
  for (const TensorInfo& tensor : checkpoint.tensors()) {
    parameters += tensor.rows() * tensor.width();
    if (tensor.name.starts_with("model.layers.41.")) layer.push_back(tensor.name);
  }
  EXPECT_EQ(parameters, 70553706496);
  EXPECT_EQ(layer.size(), 9u);

  // A mark in the last number of each of the layer's tensors: 1.5 in bf16.
  const int file = open(path.c_str(), O_WRONLY | O_CLOEXEC);
  ASSERT_GE(file, 0);
  const std::uint16_t mark = 0x3fc0;
  for (const std::string& name : layer) {
    const TensorInfo& tensor = checkpoint.at(name);
    ASSERT_EQ(pwrite(file, &mark, sizeof(mark), static_cast<off_t>(tensor.offset + tensor.bytes - sizeof(mark))), 2);
  }
  close(file);

  const std::int64_t rows_at_a_time = 64;
  std::vector<float> rows(static_cast<std::size_t>(rows_at_a_time * kInner));
  for (const std::string& name : layer) {
    const TensorInfo& tensor = checkpoint.at(name);
    double sum = 0;
    float last = 0;
    for (std::int64_t first = 0; first < tensor.rows(); first += rows_at_a_time) {
      const std::int64_t count = std::min(rows_at_a_time, tensor.rows() - first);
      const auto part = std::span(rows).first(static_cast<std::size_t>(count * tensor.width()));
      checkpoint.read_f32(name, first, count, part);
      for (const float value : part) sum += value;
      last = part.back();
    }
    EXPECT_EQ(sum, 1.5) << name;
    EXPECT_EQ(last, 1.5f) << name;
  }

  // The buffer of rows above (7 MiB), and what opening keeps: header (some 100 KiB, mapped), names and shapes. 1.7 GB
  // were read. The rest is for sanitizers, which keep what was freed for a while.
  const std::int64_t grown = peak_memory() - before;
  EXPECT_LE(grown, static_cast<std::int64_t>(rows.size() * sizeof(float)) + (24 << 20));
}

}  // namespace
}  // namespace rootdk::checkpoint
