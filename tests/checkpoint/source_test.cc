// A file that is not mapped gives the same bytes: every format read in both ways, headers longer than what is read at
// once, and what was given stays where it was.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "checkpoint/source.h"
#include "rootdk/checkpoint/checkpoint.h"
#include "support/files.h"
#include "support/gguf_writer.h"
#include "support/npz_writer.h"
#include "support/rng.h"
#include "support/safetensors_writer.h"

namespace rootdk::checkpoint {
namespace {

TEST(Source, ReadGivesWhatMappingGives) {
  const test::TemporaryDirectory directory;
  test::Rng rng(3);
  std::string text(1'000'000, 0);
  for (char& c : text) c = static_cast<char>(rng.integer(0, 255));
  test::write_file(directory / "file", text);
  const auto mapped = Source::open(directory / "file", {}), read = Source::open(directory / "file", {.map = false});
  ASSERT_EQ(read->size(), text.size());
  std::vector<std::pair<std::uint64_t, std::string_view>> given;
  for (int i = 0; i < 300; ++i) {
    const auto size = static_cast<std::int64_t>(text.size()), from = rng.integer(0, size);
    const auto offset = static_cast<std::uint64_t>(from),
               length = static_cast<std::uint64_t>(
                   rng.integer(0, std::min<std::int64_t>(size - from, i % 3 == 0 ? 300'000 : 100)));
    given.emplace_back(offset, read->text(offset, length));
    EXPECT_EQ(mapped->text(offset, length), given.back().second);
  }
  for (const auto& [offset, part] : given) EXPECT_EQ(part, std::string_view(text).substr(offset, part.size()));
  EXPECT_EQ(read->text(text.size(), 0), "");
}

void expect_same(const std::filesystem::path& path) {
  const Checkpoint mapped = Checkpoint::open(path), read = Checkpoint::open(path, {.map = false});
  ASSERT_EQ(mapped.tensors().size(), read.tensors().size());
  ASSERT_FALSE(mapped.tensors().empty());
  for (const TensorInfo& t : mapped.tensors()) {
    EXPECT_EQ(read.at(t.name).shape, t.shape);
    EXPECT_EQ(read.read_f32(t.name), mapped.read_f32(t.name)) << t.name;
    if (t.compressed) continue;
    const auto a = mapped.bytes(t.name), b = read.bytes(t.name);
    EXPECT_TRUE(a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size()) == 0) << t.name;
  }
  ASSERT_EQ(mapped.metadata().size(), read.metadata().size());
  for (std::size_t i = 0; i < mapped.metadata().size(); ++i) {
    const MetadataEntry &a = mapped.metadata()[i], &b = read.metadata()[i];
    EXPECT_EQ(a.key, b.key);
    if (a.value.text() != nullptr) {
      EXPECT_EQ(*a.value.text(), *b.value.text());
    }
    if (a.value.array() != nullptr) {
      const auto left = a.value.array()->values(), right = b.value.array()->values();
      ASSERT_EQ(left.size(), right.size());
      for (std::size_t j = 0; j < left.size(); ++j) EXPECT_EQ(*left[j].text(), *right[j].text());
    }
  }
}

TEST(Source, EveryFormatReadsTheSame) {
  const test::TemporaryDirectory directory;
  std::string numbers;
  for (int i = 0; i < 24; ++i) numbers += test::Bytes().number(0.5f * static_cast<float>(i)).text();
  const std::string dictionary = "{'descr': '<f4', 'fortran_order': False, 'shape': (4, 6), }\n";

  // A header of some hundred kilobytes: several pieces.
  std::string header = R"({"__metadata__":{"long":")" + std::string(200'000, 'x') + R"("})";
  for (int i = 0; i < 2000; ++i)
    header += R"(,"tensor )" + std::to_string(i) + R"(":{"dtype":"F32","shape":[4,6],"data_offsets":[)" +
              std::to_string(96 * i) + "," + std::to_string(96 * i + 96) + "]}";
  std::string data;
  for (int i = 0; i < 2000; ++i) data += numbers;
  test::write_file(directory / "a.safetensors", test::safetensors(header + "}", data));

  test::GgufWriter writer;
  test::Bytes texts;
  for (int i = 0; i < 30'000; ++i) texts.raw(test::gguf_text("token " + std::to_string(i)));
  writer.pair("tokens", test::kArray, test::gguf_array(test::kText, 30'000, texts.text()))
      .text("name", std::string(100'000, 'y'));
  writer.tensor({"one", {6, 4}, test::kGgmlF32, numbers}).tensor({"two", {6, 4}, test::kGgmlF32, numbers});
  test::write_file(directory / "b.gguf", writer.bytes());

  test::write_file(directory / "c.npy", test::npy(dictionary, numbers));
  test::write_file(directory / "d.npz",
                   test::npz({{.name = "x.npy", .data = test::npy(dictionary, numbers)},
                              {.name = "y.npy", .data = test::npy(dictionary, numbers), .deflated = true}}));
  for (const char* name : {"a.safetensors", "b.gguf", "c.npy", "d.npz"}) {
    SCOPED_TRACE(name);
    expect_same(directory / name);
  }
}

}  // namespace
}  // namespace rootdk::checkpoint
