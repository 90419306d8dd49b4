// .npy and .npz: every type, both byte orders, both orders of axes, whole and in parts; entries stored, deflated,
// zip64.
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <cmath>
#include <cstring>
#include <numeric>

#include "checkpoint/byte_reader.h"
#include "rootdk/checkpoint/checkpoint.h"
#include "rootdk/checkpoint/npy.h"
#include "support/files.h"
#include "support/message.h"
#include "support/npz_writer.h"
#include "support/rng.h"

namespace rootdk::checkpoint {
namespace {

namespace fs = std::filesystem;
using test::Bytes;
using test::message_of;
using test::TemporaryDirectory;

// An array as NumPy would write it, and what it means.
struct Written {
  std::string dictionary, data;
  std::vector<std::int64_t> shape;
  std::vector<double> values;  // row-major
  bool whole = false;
};

template <class T>
void append(Bytes& bytes, double value, bool big) {
  T number;
  if constexpr (std::is_same_v<T, Float16>) number = to_float16(value);
  else number = static_cast<T>(value);
  if (big) bytes.swapped(number);
  else bytes.number(number);
}

using Append = void (*)(Bytes&, double, bool);
struct Kind {
  const char* code;
  Append append;
  double low, high;  // whole numbers in between are exact in the type
};
constexpr Kind kKinds[] = {
    {"f2", append<Float16>, -2048, 2048},        {"f4", append<float>, -1e6, 1e6},
    {"f8", append<double>, -1e15, 1e15},         {"i1", append<std::int8_t>, -128, 127},
    {"i2", append<std::int16_t>, -32768, 32767}, {"i4", append<std::int32_t>, -2147483648.0, 2147483647},
    {"i8", append<std::int64_t>, -1e15, 1e15},   {"u1", append<std::uint8_t>, 0, 255},
    {"u2", append<std::uint16_t>, 0, 65535},     {"u4", append<std::uint32_t>, 0, 4294967295.0},
    {"u8", append<std::uint64_t>, 0, 1e15},      {"b1", append<std::uint8_t>, 0, 1}};

Written random_array(test::Rng& rng) {
  Written array;
  const Kind& kind = kKinds[rng.integer(0, std::size(kKinds) - 1)];
  const bool big = rng.chance(0.5), fortran = rng.chance(0.5), one_byte = kind.code[1] == '1';
  for (std::int64_t axes = rng.integer(0, 4); axes > 0; --axes)
    array.shape.push_back(rng.chance(0.1) ? 0 : rng.integer(1, 6));
  std::int64_t count = 1;
  std::string tuple;
  for (const std::int64_t extent : array.shape) {
    count *= extent;
    tuple += std::to_string(extent) + ",";
  }
  for (std::int64_t i = 0; i < count; ++i)
    array.values.push_back(std::floor(kind.low + rng.uniform() * (kind.high - kind.low)));
  // Fortran order: the first index runs fastest.
  Bytes data;
  std::vector<std::int64_t> index(array.shape.size(), 0);
  for (std::int64_t i = 0; i < count; ++i) {
    std::int64_t rest = i;
    for (std::size_t n = 0; n < index.size(); ++n) {
      const std::size_t axis = fortran ? n : index.size() - 1 - n;
      index[axis] = rest % array.shape[axis];
      rest /= array.shape[axis];
    }
    std::int64_t place = 0;
    for (std::size_t axis = 0; axis < index.size(); ++axis) place = place * array.shape[axis] + index[axis];
    kind.append(data, array.values[static_cast<std::size_t>(place)], big && !one_byte);
  }
  array.data = data.text();
  array.whole = kind.code[0] != 'f';
  const std::string descr = std::string(1, one_byte ? '|' : big ? '>' : '<') + kind.code;
  std::vector<std::string> items = {"'descr': '" + descr + "'",
                                    std::string("'fortran_order': ") + (fortran ? "True" : "False"),
                                    "\"shape\": (" + tuple + ")"};
  std::rotate(items.begin(), items.begin() + rng.integer(0, 2), items.end());
  array.dictionary = "{" + items[0] + ", " + items[1] + " ,\t" + items[2] + (rng.chance(0.5) ? ", }" : "}") + "  \n";
  return array;
}

void check_rows(const Checkpoint& checkpoint, const std::string& name, const Written& array, test::Rng& rng) {
  const TensorInfo& info = checkpoint.at(name);
  RC_ASSERT(info.shape == array.shape);
  RC_ASSERT(checkpoint.read_f64(name) == array.values);
  if (info.rows() == 0) return;
  const std::int64_t first = rng.integer(0, info.rows() - 1), rows = rng.integer(0, info.rows() - first),
                     width = info.width();
  const std::vector<double> want(array.values.begin() + first * width, array.values.begin() + (first + rows) * width);
  std::vector<float> f32(want.size());
  checkpoint.read_f32(name, first, rows, f32);
  for (std::size_t i = 0; i < want.size(); ++i) RC_ASSERT(f32[i] == static_cast<float>(want[i]));
  if (!array.whole) return;
  std::vector<std::int64_t> whole(want.size());
  checkpoint.read_i64(name, first, rows, whole);
  for (std::size_t i = 0; i < want.size(); ++i) RC_ASSERT(static_cast<double>(whole[i]) == want[i]);
}

TEST(Npy, EveryTypeAndOrder) {
  const TemporaryDirectory directory;
  const fs::path path = directory / "a.npy";
  EXPECT_TRUE(rc::check([&](std::uint64_t seed) {
    test::Rng rng(seed);
    const Written array = random_array(rng);
    test::write_file(path, test::npy(array.dictionary, array.data, static_cast<int>(rng.integer(1, 3))));
    check_rows(Checkpoint::open(path), "a", array, rng);
    const NpyArray<double> f64 = read_npy_f64(path);
    RC_ASSERT(f64.shape == array.shape);
    RC_ASSERT(f64.values == array.values);
    const NpyArray<float> f32 = read_npy_f32(path);
    for (std::size_t i = 0; i < array.values.size(); ++i)
      RC_ASSERT(f32.values[i] == static_cast<float>(array.values[i]));
    if (array.whole) {
      const NpyArray<std::int64_t> whole = read_npy_i64(path);
      for (std::size_t i = 0; i < array.values.size(); ++i)
        RC_ASSERT(static_cast<double>(whole.values[i]) == array.values[i]);
    } else {
      RC_ASSERT_THROWS_AS(read_npy_i64(path), Error);
    }
  }));
}

// Larger than the pieces that are read at a time, in both orders of axes.
TEST(Npy, ManyPieces) {
  const TemporaryDirectory directory;
  const std::int64_t rows = 30000, width = 3;
  Bytes fortran, c;
  for (std::int64_t column = 0; column < width; ++column)
    for (std::int64_t row = 0; row < rows; ++row) fortran.number(static_cast<std::int32_t>(row * width + column));
  for (std::int64_t i = 0; i < rows * width; ++i) c.number(static_cast<std::int32_t>(i));
  test::write_file(directory / "f.npy",
                   test::npy("{'descr': '<i4', 'fortran_order': True, 'shape': (30000, 3)}", fortran.text()));
  test::write_file(directory / "c.npy",
                   test::npy("{'descr': '<i4', 'fortran_order': False, 'shape': (30000, 3)}", c.text()));
  std::vector<std::int64_t> want(static_cast<std::size_t>(rows * width));
  std::iota(want.begin(), want.end(), 0);
  EXPECT_EQ(read_npy_i64(directory / "f.npy").values, want);
  EXPECT_EQ(read_npy_i64(directory / "c.npy").values, want);
  std::vector<std::int64_t> part(300);
  for (const char* name : {"f", "c"}) {
    Checkpoint::open(directory / (std::string(name) + ".npy")).read_i64(name, 29900, 100, part);
    EXPECT_TRUE(std::equal(part.begin(), part.end(), want.end() - 300)) << name;
  }
}

TEST(Npy, WrittenIsRead) {
  const TemporaryDirectory directory;
  EXPECT_TRUE(rc::check([&](const std::vector<double>& values, std::int64_t number) {
    const auto count = static_cast<std::int64_t>(values.size());
    const std::vector<std::int64_t> shape = {1, count, 1}, scalar = {};
    const std::vector<float> narrow(values.begin(), values.end());
    write_npy(directory / "f64.npy", shape, values);
    write_npy(directory / "f32.npy", shape, narrow);
    write_npy(directory / "i64.npy", scalar, std::span(&number, 1));
    const NpyArray<double> f64 = read_npy_f64(directory / "f64.npy");
    RC_ASSERT(f64.shape == shape);
    RC_ASSERT(f64.values == values);
    RC_ASSERT(read_npy_f32(directory / "f32.npy").values == narrow);
    RC_ASSERT(read_npy_i64(directory / "i64.npy").values == std::vector{number});
    RC_ASSERT(read_npy_i64(directory / "i64.npy").shape.empty());
    // As NumPy does it: the numbers begin at a multiple of 64, so they can be looked at in place.
    const Checkpoint checkpoint = Checkpoint::open(directory / "f64.npy");
    RC_ASSERT(checkpoint.at("f64").offset % 64 == 0u);
    RC_ASSERT(std::equal(values.begin(), values.end(), checkpoint.view<double>("f64").begin()));
  }));
  const std::vector<std::int64_t> two = {2};
  EXPECT_EQ(message_of([&] { write_npy(directory / "a.npy", two, std::span<const float>()); }),
            "values: 0, but the shape [2] has 2");
  const std::vector<std::int64_t> wrong = {-2};
  EXPECT_EQ(message_of([&] { write_npy(directory / "a.npy", wrong, std::span<const float>()); }),
            "shape: [-2] is no array's");
  EXPECT_FALSE(fs::exists(directory / "a.npy"));
}

TEST(Npy, BigEndianIsReadButNotViewed) {
  const TemporaryDirectory directory;
  test::write_file(directory / "a.npy",
                   test::npy("{'descr': '>f4', 'fortran_order': False, 'shape': (1,)}", Bytes().swapped(1.5f).text()));
  const Checkpoint checkpoint = Checkpoint::open(directory / "a.npy");
  EXPECT_EQ(checkpoint.read_f32("a"), std::vector<float>{1.5f});
  EXPECT_EQ(message_of([&] { checkpoint.view<float>("a"); }),
            "tensor \"a\": big-endian, so its numbers cannot be looked at in place; read them");
}

TEST(Npy, UnsignedBeyondInt64) {
  const TemporaryDirectory directory;
  const fs::path path = directory / "a.npy";
  test::write_file(path, test::npy("{'descr': '<u8', 'fortran_order': False, 'shape': (1,)}     ",
                                   Bytes().number(~std::uint64_t{0}).text()));
  EXPECT_EQ(message_of([&] { read_npy_i64(path); }),
            path.string() + ": byte 70: tensor \"a\": 18446744073709551615 is beyond int64");
}

TEST(Npz, StoredDeflatedAndZip64) {
  const TemporaryDirectory directory;
  const fs::path path = directory / "a.npz";
  EXPECT_TRUE(rc::check([&](std::uint64_t seed) {
    test::Rng rng(seed);
    std::vector<Written> arrays;
    std::vector<test::NpzEntry> entries;
    for (std::int64_t left = rng.integer(0, 4); left > 0; --left) {
      arrays.push_back(random_array(rng));
      entries.push_back(
          {"array" + std::to_string(left) + ".npy", test::npy(arrays.back().dictionary, arrays.back().data)});
      entries.back().deflated = can_inflate() && rng.chance(0.5);
      entries.back().zip64 = rng.chance(0.3);
    }
    test::write_file(path, test::npz(entries, rng.chance(0.3)));
    const Checkpoint checkpoint = Checkpoint::open(path);
    RC_ASSERT(checkpoint.tensors().size() == arrays.size());
    for (std::size_t i = 0; i < arrays.size(); ++i) {
      const std::string name = entries[i].name.substr(0, entries[i].name.size() - 4);
      RC_ASSERT(checkpoint.at(name).compressed == entries[i].deflated);
      check_rows(checkpoint, name, arrays[i], rng);
    }
  }));
}

TEST(Npz, DeflatedWithoutZlib) {
  if (can_inflate()) GTEST_SKIP() << "this rootdk has zlib";
  const TemporaryDirectory directory;
  test::write_file(directory / "a.npz", test::npz({{.name = "a.npy", .data = "unseen", .deflated = true}}));
  EXPECT_EQ(
      message_of([&] { Checkpoint::open(directory / "a.npz"); }),
      (directory / "a.npz").string() + ": byte 40: \"a.npy\" is deflated, and this rootdk was built without zlib");
}

TEST(Npz, DeflatedInManyPieces) {
  if (!can_inflate()) GTEST_SKIP() << "this rootdk has no zlib";
  const TemporaryDirectory directory;
  const std::int64_t count = 300000;
  Bytes data;
  for (std::int64_t i = 0; i < count; ++i) data.number(static_cast<std::int32_t>(i));
  const std::string array = test::npy("{'descr': '<i4', 'fortran_order': False, 'shape': (300000, 1)}", data.text());
  std::string damaged = test::npz({{.name = "a.npy", .data = array, .deflated = true}});
  test::write_file(directory / "a.npz", damaged);
  const Checkpoint checkpoint = Checkpoint::open(directory / "a.npz");
  std::vector<std::int64_t> part(10);
  checkpoint.read_i64("a", 299990, 10, part);
  EXPECT_EQ(part.front(), 299990);
  checkpoint.read_i64("a", 7, 10, part);
  EXPECT_EQ(part.back(), 16);
  EXPECT_EQ(message_of([&] { checkpoint.bytes("a"); }),
            "tensor \"a\": compressed, so it has no bytes to look at; read it");

  // One wrong byte in the middle is noticed by whoever reads to the end.
  damaged[600000] = static_cast<char>(damaged[600000] ^ 1);
  test::write_file(directory / "b.npz", damaged);
  const Checkpoint other = Checkpoint::open(directory / "b.npz");
  other.read_i64("a", 0, 10, part);
  const std::string message = message_of([&] { other.read_f32("a"); });
  EXPECT_TRUE(message.starts_with((directory / "b.npz").string() + ": byte 40: \"a\" is damaged: its checksum is "))
      << message;
}

}  // namespace
}  // namespace rootdk::checkpoint
