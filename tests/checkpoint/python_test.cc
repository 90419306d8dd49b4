// Files that pass between rootdk and Python's own packages: numpy, safetensors and gguf, each where it is installed.
// ROOTDK_PYTHON names another interpreter than python3.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <numeric>

#include "checkpoint/byte_reader.h"
#include "rootdk/checkpoint/checkpoint.h"
#include "rootdk/checkpoint/npy.h"
#include "rootdk/checkpoint/safetensors.h"
#include "support/files.h"

namespace rootdk::checkpoint {
namespace {

namespace fs = std::filesystem;

class Python : public ::testing::Test {
 protected:
  // Runs a script in the directory; 0 means that all went well.
  int run(const std::string& script) {
    test::write_file(directory_ / "script.py", script);
    const char* const chosen = std::getenv("ROOTDK_PYTHON");
    const std::string command =
        "cd '" + directory_.path().string() + "' && '" + (chosen != nullptr ? chosen : "python3") + "' script.py";
    return std::system(command.c_str());
  }
  bool has(const std::string& module) {
    return run("import importlib.util, sys; sys.exit(importlib.util.find_spec('" + module + "') is None)") == 0;
  }

  test::TemporaryDirectory directory_;
};

// Numbers that both sides make: small whole ones, which every type holds.
std::vector<double> expected(std::int64_t count, bool is_bool) {
  std::vector<double> values;
  for (std::int64_t i = 0; i < count; ++i) values.push_back(static_cast<double>(is_bool ? i % 2 : i % 100));
  return values;
}

TEST_F(Python, NumpyToUs) {
  if (!has("numpy")) GTEST_SKIP() << "no numpy here";
  ASSERT_EQ(run(R"(
import numpy as np
shapes = {'s': (), 'v': (300,), 'm': (7, 11), 't': (3, 4, 5), 'e': (4, 0)}
types = ['f2', 'f4', 'f8', 'i1', 'i2', 'i4', 'i8', 'u1', 'u2', 'u4', 'u8', 'b1']
arrays = {}
for name, shape in shapes.items():
  for code in types:
    for order in 'CF':
      for end in '<>':
        n = int(np.prod(shape))
        a = (np.arange(n) % (2 if code == 'b1' else 100)).reshape(shape)
        a = np.asarray(a.astype(end + code), order=order)
        key = f'{name}_{code}_{order}_{"little" if end == "<" else "big"}'
        arrays[key] = a
        np.save(key + '.npy', a)
np.savez('plain.npz', **arrays)
np.savez_compressed('packed.npz', **arrays)
long = (np.arange(1000000) % 100).reshape(1000, 1000)
np.savez_compressed('long.npz', c=long, f=np.asfortranarray(long))
for version in (1, 2, 3):
  with open(f'version{version}.npy', 'wb') as f:
    np.lib.format.write_array(f, np.arange(6.0).reshape(2, 3), version=(version, 0))
)"),
            0);
  std::vector<Checkpoint> archives = {Checkpoint::open(directory_ / "plain.npz")};
  if (can_inflate()) archives.push_back(Checkpoint::open(directory_ / "packed.npz"));
  int files = 0;
  for (const auto& entry : fs::directory_iterator(directory_.path())) {
    const std::string name = entry.path().stem();
    if (entry.path().extension() != ".npy" || name.starts_with("version")) continue;
    ++files;
    const NpyArray<double> array = read_npy_f64(entry.path());
    EXPECT_EQ(array.values,
              expected(static_cast<std::int64_t>(array.values.size()), name.find("b1") != std::string::npos))
        << name;
    EXPECT_EQ(array.shape.size(), name[0] == 's' ? 0u : name[0] == 'v' ? 1u : name[0] == 't' ? 3u : 2u);
    for (const Checkpoint& archive : archives) {
      EXPECT_EQ(archive.at(name).shape, array.shape) << name;
      EXPECT_EQ(archive.read_f64(name), array.values) << name;
    }
  }
  EXPECT_EQ(files, 5 * 12 * 2 * 2);
  for (const char* name : {"version1", "version2", "version3"}) {
    const NpyArray<float> array = read_npy_f32(directory_ / (std::string(name) + ".npy"));
    EXPECT_EQ(array.values, (std::vector<float>{0, 1, 2, 3, 4, 5})) << name;
  }
  if (!can_inflate()) return;
  const Checkpoint packed = Checkpoint::open(directory_ / "long.npz");
  EXPECT_TRUE(packed.at("c").compressed);
  for (const char* name : {"c", "f"}) {
    EXPECT_EQ(packed.read_f64(name), expected(1000000, false)) << name;
    std::vector<double> part(5 * 1000);
    packed.read_f64(name, 900, 5, part);
    EXPECT_EQ(part, expected(5000, false)) << name;  // row 900 begins with 900000 % 100 = 0
  }
}

TEST_F(Python, WeToNumpy) {
  if (!has("numpy")) GTEST_SKIP() << "no numpy here";
  std::vector<float> f32(60);
  std::iota(f32.begin(), f32.end(), -0.5f);
  const std::vector<double> f64(f32.begin(), f32.end());
  const std::vector<std::int64_t> whole(f32.begin(), f32.end()), cube = {3, 4, 5}, flat = {60}, none = {0, 7},
                                                                 scalar = {};
  write_npy(directory_ / "f32.npy", cube, f32);
  write_npy(directory_ / "f64.npy", flat, f64);
  write_npy(directory_ / "i64.npy", cube, whole);
  write_npy(directory_ / "none.npy", none, std::span<const float>());
  write_npy(directory_ / "scalar.npy", scalar, std::span(f64).first(1));
  EXPECT_EQ(run(R"(
import numpy as np
def check(name, want):
  got = np.load(name + '.npy')
  assert got.dtype == want.dtype and got.shape == want.shape and (got == want).all(), (name, got, want)
x = np.arange(60) - 0.5
check('f32', x.astype('<f4').reshape(3, 4, 5))
check('f64', x)
check('i64', np.trunc(x).astype('<i8').reshape(3, 4, 5))
check('none', np.zeros((0, 7), '<f4'))
check('scalar', np.array(-0.5))
)"),
            0);
}

TEST_F(Python, SafetensorsBothWays) {
  if (!has("numpy") || !has("safetensors")) GTEST_SKIP() << "no safetensors package here";
  ASSERT_EQ(run(R"(
import numpy as np
from safetensors.numpy import save_file
x = np.arange(12).reshape(3, 4)
tensors = {f'ü.{c}': x.astype(c) for c in ['f2', 'f4', 'f8', 'i1', 'i2', 'i4', 'i8', 'u1', 'u2', 'u4', 'u8', 'bool']}
tensors['none'] = np.zeros((2, 0), 'f4')
tensors['one'] = np.array(7, 'f8')
save_file(tensors, 'theirs.safetensors', metadata={'step': '12', 'ä': 'ö\n"'})
)"),
            0);
  const Checkpoint theirs = Checkpoint::open(directory_ / "theirs.safetensors");
  EXPECT_EQ(theirs.tensors().size(), 14u);
  EXPECT_EQ(*theirs.find_metadata("step")->text(), "12");
  EXPECT_EQ(*theirs.find_metadata("ä")->text(), "ö\n\"");
  for (const TensorInfo& tensor : theirs.tensors()) {
    if (!tensor.name.starts_with("ü")) continue;
    EXPECT_EQ(tensor.shape, (std::vector<std::int64_t>{3, 4}));
    const std::vector<double> values = theirs.read_f64(tensor.name);
    for (std::size_t i = 0; i < 12; ++i)
      EXPECT_EQ(values[i], tensor.encoding == Encoding::kBool ? (i > 0 ? 1 : 0) : static_cast<double>(i))
          << tensor.name;
  }
  EXPECT_EQ(theirs.read_f32("one"), std::vector<float>{7});

  std::vector<float> f32(6);
  std::iota(f32.begin(), f32.end(), 0.0f);
  std::vector<Float16> f16;
  for (const float value : f32) f16.push_back(to_float16(value));
  const std::vector<std::int64_t> whole = {-1, INT64_MAX};
  const std::vector<std::uint8_t> odd = {1, 2, 3};
  const std::vector<NewTensor> tensors = {
      new_tensor<std::uint8_t>("odd \"é\"", {3}, odd), new_tensor<Float16>("f16", {6, 1}, f16),
      new_tensor<float>("f32", {2, 3}, f32), new_tensor<std::int64_t>("i64", {2}, whole),
      new_tensor<double>("none", {0}, {})};
  write_safetensors(directory_ / "ours.safetensors", tensors, {{"step", "13"}});
  EXPECT_EQ(run(R"(
import numpy as np
from safetensors import safe_open
with safe_open('ours.safetensors', 'numpy') as f:
  assert f.metadata() == {'step': '13'}, f.metadata()
  assert sorted(f.keys()) == sorted(['odd "é"', 'f16', 'f32', 'i64', 'none']), f.keys()
  def check(name, want):
    got = f.get_tensor(name)
    assert got.dtype == want.dtype and got.shape == want.shape and (got == want).all(), (name, got, want)
  check('odd "é"', np.array([1, 2, 3], 'u1'))
  check('f16', np.arange(6).astype('f2').reshape(6, 1))
  check('f32', np.arange(6).astype('f4').reshape(2, 3))
  check('i64', np.array([-1, 2**63 - 1], 'i8'))
  check('none', np.zeros(0))
)"),
            0);
}

// Blocks of random bits, their scales kept finite, dequantised by both.
TEST_F(Python, Gguf) {
  if (!has("numpy") || !has("gguf")) GTEST_SKIP() << "no gguf package here";
  ASSERT_EQ(run(R"(
import numpy as np, gguf
from gguf import GGMLQuantizationType as T
rng = np.random.default_rng(1)
w = gguf.GGUFWriter('theirs.gguf', 'llama')
w.add_uint32('u32', 7)
w.add_float32('f32', 0.5)
w.add_bool('bool', True)
w.add_array('tokens', ['a', 'bc', ''])
w.add_array('numbers', [1, -2, 3])
scales = {T.Q8_0: [0], T.Q4_0: [0], T.Q4_1: [0, 2], T.Q5_0: [0], T.Q5_1: [0, 2], T.Q4_K: [0, 2], T.Q5_K: [0, 2],
          T.Q6_K: [208]}
for kind, places in scales.items():
  values, size = gguf.GGML_QUANT_SIZES[kind]
  blocks = rng.integers(0, 256, (5 * 3, size), dtype=np.uint8)
  for place in places:
    blocks[:, place + 1] &= 0xbf  # exponents below 16: no infinities
  raw = blocks.reshape(5, 3 * size)
  w.add_tensor(kind.name, raw, raw_dtype=kind)
  np.save(kind.name + '.npy', gguf.quants.dequantize(raw, kind))
half = rng.normal(size=(4, 6)).astype('f2')
w.add_tensor('half', half)
np.save('half.npy', half.astype('f4'))
w.write_header_to_file(); w.write_kv_data_to_file(); w.write_tensors_to_file(); w.close()
)"),
            0);
  const Checkpoint theirs = Checkpoint::open(directory_ / "theirs.gguf");
  EXPECT_EQ(*theirs.find_metadata("general.architecture")->text(), "llama");
  EXPECT_EQ(theirs.find_metadata("u32")->integer(), 7);
  EXPECT_EQ(theirs.find_metadata("f32")->number(), 0.5);
  EXPECT_EQ(theirs.find_metadata("bool")->boolean(), true);
  EXPECT_EQ(*theirs.find_metadata("tokens")->array()->values()[1].text(), "bc");
  EXPECT_EQ(theirs.find_metadata("numbers")->array()->values()[1].integer(), -2);
  EXPECT_EQ(theirs.tensors().size(), 9u);
  for (const TensorInfo& tensor : theirs.tensors()) {
    const NpyArray<float> want = read_npy_f32(directory_ / (tensor.name + ".npy"));
    EXPECT_EQ(tensor.shape, want.shape) << tensor.name;
    const std::vector<float> got = theirs.read_f32(tensor.name);
    ASSERT_EQ(got.size(), want.values.size());
    EXPECT_EQ(std::memcmp(got.data(), want.values.data(), got.size() * sizeof(float)), 0) << tensor.name;
  }
}

}  // namespace
}  // namespace rootdk::checkpoint
