// GGUF written by tests/support and read back: every type of value, arrays that stay in the file, tensors of every
// readable type.
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <cmath>
#include <cstring>

#include "checkpoint/decode.h"
#include "rootdk/checkpoint/checkpoint.h"
#include "support/files.h"
#include "support/gguf_writer.h"
#include "support/message.h"
#include "support/rng.h"

namespace rootdk::checkpoint {
namespace {

namespace fs = std::filesystem;
using test::Bytes;
using test::GgufWriter;
using test::message_of;
using test::TemporaryDirectory;

class Gguf : public ::testing::Test {
 protected:
  Checkpoint open(const GgufWriter& writer) {
    const fs::path path = directory_ / ("model" + std::to_string(++files_) + ".gguf");
    test::write_file(path, writer.bytes());
    return Checkpoint::open(path);
  }
  TemporaryDirectory directory_;
  int files_ = 0;
};

TEST_F(Gguf, EveryTypeOfValue) {
  for (const std::uint32_t version : {2u, 3u}) {
    GgufWriter writer;
    writer.version = version;
    writer.number("u8", test::kU8, std::uint8_t{200}).number("i8", test::kI8, std::int8_t{-100});
    writer.number("u16", test::kU16, std::uint16_t{60000}).number("i16", test::kI16, std::int16_t{-30000});
    writer.number("u32", test::kU32, std::uint32_t{4000000000}).number("i32", test::kI32, std::int32_t{-2000000000});
    writer.number("u64", test::kU64, ~std::uint64_t{0}).number("i64", test::kI64, std::int64_t{INT64_MIN});
    writer.number("f32", test::kF32, 1.5f).number("f64", test::kF64, 0.1).number("bool", test::kBool, std::uint8_t{1});
    writer.text("text", "caf\xc3\xa9").text("not utf-8", "\xff");
    const Checkpoint checkpoint = open(writer);
    EXPECT_EQ(checkpoint.format(), Format::kGguf);
    EXPECT_EQ(checkpoint.metadata().size(), 13u);
    const auto value = [&](const char* key) -> const MetadataValue& { return *checkpoint.find_metadata(key); };
    EXPECT_EQ(value("u8").integer(), 200);
    EXPECT_EQ(value("i8").integer(), -100);
    EXPECT_EQ(value("u16").integer(), 60000);
    EXPECT_EQ(value("i16").integer(), -30000);
    EXPECT_EQ(value("u32").integer(), 4000000000);
    EXPECT_EQ(value("i32").integer(), -2000000000);
    EXPECT_EQ(value("u64").integer(), std::nullopt);
    EXPECT_EQ(value("u64").number(), 18446744073709551616.0);
    EXPECT_EQ(value("i64").integer(), INT64_MIN);
    EXPECT_EQ(value("f32").number(), 1.5);
    EXPECT_EQ(value("f32").integer(), std::nullopt);
    EXPECT_EQ(value("f64").number(), 0.1);
    EXPECT_EQ(value("bool").boolean(), true);
    EXPECT_EQ(value("bool").number(), std::nullopt);
    EXPECT_EQ(*value("text").text(), "caf\xc3\xa9");
    EXPECT_EQ(*value("not utf-8").text(), "\xff");
    EXPECT_EQ(value("u16").type, ValueType::kU16);
    EXPECT_EQ(checkpoint.find_metadata("nothing"), nullptr);
  }
}

TEST_F(Gguf, Arrays) {
  Bytes numbers, texts, flags;
  for (std::int32_t i = 0; i < 1000; ++i) {
    numbers.number(std::int32_t{-i});
    texts.raw(test::gguf_text(std::string(static_cast<std::size_t>(i % 7), 'x')));
    flags.number(static_cast<std::uint8_t>(i % 2));
  }
  const std::string inner = test::gguf_array(test::kU8, 2, "ab");
  GgufWriter writer;
  writer.pair("numbers", test::kArray, test::gguf_array(test::kI32, 1000, numbers.text()));
  writer.pair("texts", test::kArray, test::gguf_array(test::kText, 1000, texts.text()));
  writer.pair("flags", test::kArray, test::gguf_array(test::kBool, 1000, flags.text()));
  writer.pair("nested", test::kArray, test::gguf_array(test::kArray, 2, inner + inner));
  writer.pair("empty", test::kArray, test::gguf_array(test::kF64, 0, ""));
  writer.number("after", test::kU8, std::uint8_t{7});
  std::vector<MetadataValue> kept;
  {
    const Checkpoint checkpoint = open(writer);
    const auto array = [&](const char* key) -> const MetadataArray& { return *checkpoint.find_metadata(key)->array(); };
    EXPECT_EQ(array("numbers").size(), 1000u);
    EXPECT_EQ(array("numbers").element_type(), ValueType::kI32);
    EXPECT_EQ(array("numbers").values(998, 2)[1].integer(), -999);
    EXPECT_EQ(array("numbers").values().size(), 1000u);
    EXPECT_EQ(*array("texts").values(699, 1)[0].text(), std::string(699 % 7, 'x'));
    EXPECT_EQ(array("flags").values(0, 2)[1].boolean(), true);
    EXPECT_TRUE(array("empty").values().empty());
    EXPECT_EQ(checkpoint.find_metadata("after")->integer(), 7);
    EXPECT_EQ(message_of([&] { array("numbers").values(999, 2); }), "values: 2 from 999 on, but the array has 1000");
    kept = array("nested").values();
  }
  // An array keeps its file, also when the checkpoint is gone.
  ASSERT_EQ(kept.size(), 2u);
  EXPECT_EQ(kept[1].array()->values()[1].integer(), 'b');
}

TEST_F(Gguf, TensorsOfEveryReadableType) {
  struct Kind {
    test::GgmlType type;
    Encoding encoding;
  };
  constexpr Kind kKinds[] = {
      {test::kGgmlF32, Encoding::kF32},   {test::kGgmlF16, Encoding::kF16},   {test::kGgmlBF16, Encoding::kBF16},
      {test::kGgmlF64, Encoding::kF64},   {test::kGgmlI8, Encoding::kI8},     {test::kGgmlI16, Encoding::kI16},
      {test::kGgmlI32, Encoding::kI32},   {test::kGgmlI64, Encoding::kI64},   {test::kGgmlQ8_0, Encoding::kQ8_0},
      {test::kGgmlQ4_0, Encoding::kQ4_0}, {test::kGgmlQ4_1, Encoding::kQ4_1}, {test::kGgmlQ5_0, Encoding::kQ5_0},
      {test::kGgmlQ5_1, Encoding::kQ5_1}, {test::kGgmlQ4_K, Encoding::kQ4_K}, {test::kGgmlQ5_K, Encoding::kQ5_K},
      {test::kGgmlQ6_K, Encoding::kQ6_K}};
  EXPECT_TRUE(rc::check([&](std::uint64_t seed) {
    test::Rng rng(seed);
    GgufWriter writer;
    if (rng.chance(0.5)) {
      writer.alignment = static_cast<std::uint64_t>(8 * rng.integer(1, 20));
      writer.number("general.alignment", test::kU32, static_cast<std::uint32_t>(writer.alignment));
    }
    struct Want {
      std::string name;
      Encoding encoding;
      std::vector<std::int64_t> shape;
      std::string data;
    };
    std::vector<Want> wants;
    for (const Kind& kind : kKinds) {
      const EncodingTraits& t = traits(kind.encoding);
      Want want = {std::string("blk.0.") + std::string(t.name), kind.encoding, {}, {}};
      for (std::int64_t axes = rng.integer(0, 3); axes > 0; --axes) want.shape.push_back(rng.integer(0, 4));
      if (t.block_values > 1 || !want.shape.empty()) want.shape.push_back(t.block_values * rng.integer(1, 3));
      std::int64_t count = 1;
      for (const std::int64_t extent : want.shape) count *= extent;
      want.data.resize(static_cast<std::size_t>(count / t.block_values * t.block_bytes));
      for (char& byte : want.data) byte = static_cast<char>(rng.next());
      writer.tensor({want.name, {want.shape.rbegin(), want.shape.rend()}, kind.type, want.data});
      wants.push_back(std::move(want));
    }
    const Checkpoint checkpoint = open(writer);
    RC_ASSERT(checkpoint.tensors().size() == wants.size());
    for (const Want& want : wants) {
      const TensorInfo& info = checkpoint.at(want.name);
      RC_ASSERT(info.encoding == want.encoding);
      RC_ASSERT(info.shape == want.shape);
      RC_ASSERT(info.offset % writer.alignment == 0u || info.bytes == 0);
      const auto bytes = checkpoint.bytes(want.name);
      RC_ASSERT(std::memcmp(bytes.data(), want.data.data(), want.data.size()) == 0);
      if (info.rows() == 0) continue;
      // Some rows: what decoding all of it gives there.
      std::vector<float> all(static_cast<std::size_t>(info.rows() * info.width()));
      decode(info.encoding, ByteOrder::kLittle, bytes.data(), static_cast<std::int64_t>(all.size()), all.data());
      const std::int64_t first = rng.integer(0, info.rows() - 1), rows = rng.integer(1, info.rows() - first);
      std::vector<float> some(static_cast<std::size_t>(rows * info.width()));
      checkpoint.read_f32(want.name, first, rows, some);
      RC_ASSERT(std::memcmp(some.data(), all.data() + first * info.width(), some.size() * sizeof(float)) == 0);
    }
  }));
}

TEST_F(Gguf, ListedButNotRead) {
  GgufWriter writer;
  writer.tensor({"w", {256}, test::kGgmlQ2_K, std::string(84, '\0')});
  const Checkpoint checkpoint = open(writer);
  EXPECT_EQ(checkpoint.at("w").bytes, 84u);
  EXPECT_EQ(message_of([&] { checkpoint.read_f32("w"); }), "tensor \"w\": Q2_K cannot be read as numbers");
}

// Every beginning that cuts into header or data is refused.
TEST_F(Gguf, CutOffFiles) {
  GgufWriter writer;
  writer.text("general.name", "small")
      .pair("list", test::kArray, test::gguf_array(test::kText, 2, test::gguf_text("a") + test::gguf_text("b")));
  writer.tensor({"w", {3, 2}, test::kGgmlF32, std::string(24, '\1')})
      .tensor({"v", {32}, test::kGgmlQ8_0, std::string(34, '\1')});
  const std::string bytes = writer.bytes();
  for (std::size_t length = 0; length < bytes.size(); ++length) {
    test::write_file(directory_ / "cut.gguf", std::string_view(bytes).substr(0, length));
    EXPECT_THROW(Checkpoint::open(directory_ / "cut.gguf"), Error) << length << " of " << bytes.size();
  }
}

// A file that is changed after it was checked: reading an array anew does not trust the old checks.
TEST_F(Gguf, AnArrayThatChangesUnderneath) {
  GgufWriter writer;
  writer.pair("list", test::kArray, test::gguf_array(test::kText, 2, test::gguf_text("a") + test::gguf_text("b")));
  const fs::path path = directory_ / "a.gguf";
  std::string bytes = writer.bytes();
  test::write_file(path, bytes);
  const Checkpoint checkpoint = Checkpoint::open(path);
  const std::size_t length_of_a = bytes.size() - 18;
  bytes[length_of_a + 6] = '\x7f';
  {
    std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
    file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  }
  EXPECT_EQ(message_of([&] { checkpoint.find_metadata("list")->array()->values(); }),
            path.string() + ": byte " + std::to_string(length_of_a + 8) +
                ": the file ends in a text: 35747322042253313 bytes are wanted, 10 are left");
}

}  // namespace
}  // namespace rootdk::checkpoint
