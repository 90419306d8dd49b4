// safetensors out and in again: random tensors and names give the same bits; the writer leaves no half-written file
// behind.
#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstring>
#include <map>
#include <set>
#include <thread>

#include "rootdk/checkpoint/checkpoint.h"
#include "rootdk/checkpoint/safetensors.h"
#include "support/files.h"
#include "support/message.h"
#include "support/rng.h"
#include "support/safetensors_writer.h"

namespace rootdk::checkpoint {
namespace {

namespace fs = std::filesystem;
using test::message_of;
using test::TemporaryDirectory;

constexpr std::array kWritable = {Encoding::kF64,    Encoding::kF32,        Encoding::kF16,        Encoding::kBF16,
                                  Encoding::kI64,    Encoding::kI32,        Encoding::kI16,        Encoding::kI8,
                                  Encoding::kU64,    Encoding::kU32,        Encoding::kU16,        Encoding::kU8,
                                  Encoding::kBool,   Encoding::kC64,        Encoding::kF8E4M3,     Encoding::kF8E5M2,
                                  Encoding::kF8E8M0, Encoding::kF8E4M3Fnuz, Encoding::kF8E5M2Fnuz, Encoding::kF6E2M3,
                                  Encoding::kF6E3M2, Encoding::kF4};

// Any code point but controls and surrogates, quotes and backslashes among them.
std::string random_text(test::Rng& rng) {
  std::string text;
  for (std::int64_t length = rng.log_integer(1, 40); length > 0; --length) {
    std::int64_t code = rng.chance(0.5) ? rng.integer(0x20, 0x7e) : rng.log_integer(0xa0, 0x10ffff);
    if (code >= 0xd800 && code < 0xe000) code -= 0x800;
    const auto put = [&](std::int64_t byte) { text += static_cast<char>(byte); };
    if (code < 0x80) {
      put(code);
    } else if (code < 0x800) {
      put(0xc0 | code >> 6), put(0x80 | (code & 63));
    } else if (code < 0x10000) {
      put(0xe0 | code >> 12), put(0x80 | (code >> 6 & 63)), put(0x80 | (code & 63));
    } else {
      put(0xf0 | code >> 18), put(0x80 | (code >> 12 & 63)), put(0x80 | (code >> 6 & 63)), put(0x80 | (code & 63));
    }
  }
  return text;
}

struct Model {
  std::map<std::string, std::string> data;  // names and bytes
  std::vector<NewTensor> tensors;
  std::map<std::string, std::string> metadata;
};

Model random_model(std::uint64_t seed) {
  test::Rng rng(seed);
  Model model;
  for (std::int64_t left = rng.integer(0, 12); left > 0; --left) {
    NewTensor tensor;
    tensor.name = random_text(rng);
    tensor.encoding = kWritable[static_cast<std::size_t>(rng.integer(0, kWritable.size() - 1))];
    std::int64_t count = 1;
    for (std::int64_t axes = rng.integer(0, 4); axes > 0; --axes) {
      tensor.shape.push_back(rng.integer(0, 5));
      count *= tensor.shape.back();
    }
    const EncodingTraits& t = traits(tensor.encoding);
    if (count % t.block_values != 0) {
      tensor.shape.push_back(t.block_values);
      count *= t.block_values;
    }
    std::string bytes(static_cast<std::size_t>(count / t.block_values * t.block_bytes), '\0');
    for (char& byte : bytes) byte = static_cast<char>(rng.next());
    const auto [place, fresh] = model.data.emplace(tensor.name, std::move(bytes));
    if (!fresh) continue;
    tensor.data = std::as_bytes(std::span(place->second));
    model.tensors.push_back(std::move(tensor));
  }
  for (std::int64_t left = rng.integer(0, 3); left > 0; --left)
    model.metadata[random_text(rng)] = random_text(rng) + "\n\t\"";
  return model;
}

bool same_bytes(std::span<const std::byte> a, std::span<const std::byte> b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end());
}

TEST(Safetensors, WrittenIsRead) {
  const TemporaryDirectory directory;
  const fs::path path = directory / "model.safetensors";
  EXPECT_TRUE(rc::check([&](std::uint64_t seed) {
    const Model model = random_model(seed);
    write_safetensors(path, model.tensors, model.metadata);
    const Checkpoint checkpoint = Checkpoint::open(path);
    RC_ASSERT(checkpoint.format() == Format::kSafetensors);
    RC_ASSERT(checkpoint.tensors().size() == model.tensors.size());
    for (const NewTensor& tensor : model.tensors) {
      const TensorInfo& info = checkpoint.at(tensor.name);
      RC_ASSERT(info.encoding == tensor.encoding);
      RC_ASSERT(info.shape == tensor.shape);
      RC_ASSERT(info.bytes == tensor.data.size());
      RC_ASSERT(same_bytes(checkpoint.bytes(tensor.name), tensor.data));
      RC_ASSERT(info.offset % static_cast<std::uint64_t>(traits(info.encoding).block_bytes) == 0 ||
                traits(info.encoding).block_values > 1);
    }
    std::map<std::string, std::string> metadata;
    for (const MetadataEntry& entry : checkpoint.metadata()) metadata[entry.key] = *entry.value.text();
    RC_ASSERT(metadata == model.metadata);
  }));
}

TEST(Safetensors, TheSameInputGivesTheSameBytes) {
  const TemporaryDirectory directory;
  EXPECT_TRUE(rc::check([&](std::uint64_t seed) {
    Model model = random_model(seed);
    write_safetensors(directory / "a", model.tensors, model.metadata);
    std::reverse(model.tensors.begin(), model.tensors.end());
    write_safetensors(directory / "b", model.tensors, model.metadata);
    RC_ASSERT(test::read_file(directory / "a") == test::read_file(directory / "b"));
  }));
}

// Every proper beginning of a file is refused, and whatever byte is changed, the reader either takes the file or
// refuses it.
TEST(Safetensors, CutOffAndDamagedFiles) {
  const TemporaryDirectory directory;
  const fs::path path = directory / "model.safetensors";
  EXPECT_TRUE(rc::check([&](std::uint64_t seed) {
    const Model model = random_model(seed);
    write_safetensors(path, model.tensors, model.metadata);
    const std::string bytes = test::read_file(path);
    test::Rng rng(seed);
    const auto length = static_cast<std::size_t>(rng.integer(0, static_cast<std::int64_t>(bytes.size()) - 1));
    test::write_file(path, std::string_view(bytes).substr(0, length));
    RC_ASSERT_THROWS_AS(Checkpoint::open(path), Error);
    std::string damaged = bytes;
    for (int i = 0; i < 3; ++i)
      damaged[static_cast<std::size_t>(rng.integer(0, static_cast<std::int64_t>(bytes.size()) - 1))] =
          static_cast<char>(rng.next());
    test::write_file(path, damaged);
    try {
      const Checkpoint checkpoint = Checkpoint::open(path);
      for (const TensorInfo& tensor : checkpoint.tensors())
        if (traits(tensor.encoding).readable) checkpoint.read_f32(tensor.name);
    } catch (const Error&) {
    }
  }));
}

TEST(Safetensors, RowsAreTheLastAxis) {
  const TemporaryDirectory directory;
  std::vector<float> values(2 * 3 * 4);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i);
  const std::vector<Float16> one = {to_float16(2.5)};
  const std::vector<std::int64_t> whole = {std::int64_t{1} << 53, (std::int64_t{1} << 53) + 1};
  const std::vector<NewTensor> tensors = {
      new_tensor<float>("cube", {2, 3, 4}, values), new_tensor<Float16>("one", {}, one),
      new_tensor<std::int64_t>("whole", {2}, whole), new_tensor<float>("none", {5, 0}, {}),
      new_tensor<float>("no rows", {0, 5}, {})};
  write_safetensors(directory / "a.safetensors", tensors);
  const Checkpoint checkpoint = Checkpoint::open(directory / "a.safetensors");
  EXPECT_EQ(checkpoint.at("cube").rows(), 6);
  std::vector<float> rows(8);
  checkpoint.read_f32("cube", 2, 2, rows);
  EXPECT_EQ(rows, std::vector<float>(values.begin() + 8, values.begin() + 16));
  std::vector<double> wide(4);
  checkpoint.read_f64("cube", 5, 1, wide);
  EXPECT_EQ(wide, (std::vector<double>{20, 21, 22, 23}));
  EXPECT_EQ(checkpoint.read_f32("one"), std::vector<float>{2.5f});
  EXPECT_EQ(checkpoint.view<float>("cube")[23], 23);
  EXPECT_EQ(checkpoint.view<Float16>("one")[0].bits, one[0].bits);
  std::vector<std::int64_t> exact(2);
  checkpoint.read_i64("whole", 0, 1, exact);
  EXPECT_EQ(exact, whole);
  EXPECT_EQ(checkpoint.read_f64("none"), std::vector<double>());
  EXPECT_EQ(checkpoint.at("none").rows(), 5);
  EXPECT_EQ(checkpoint.at("no rows").rows(), 0);
  checkpoint.read_f32("none", 1, 4, {});
  EXPECT_EQ(checkpoint.view<float>("none").size(), 0u);

  EXPECT_EQ(message_of([&] { checkpoint.read_f32("cube", 5, 2, rows); }),
            "rows: 2 from 5 on, but tensor \"cube\" has 6");
  EXPECT_EQ(message_of([&] { checkpoint.read_f32("cube", INT64_MAX, 1, rows); }),
            "rows: 1 from 9223372036854775807 on, but tensor \"cube\" has 6");
  EXPECT_EQ(message_of([&] { checkpoint.read_f32("cube", 0, -1, rows); }),
            "rows: -1 from 0 on, but tensor \"cube\" has 6");
  EXPECT_EQ(message_of([&] { checkpoint.read_f32("cube", 0, 1, rows); }), "out: 8 values, but 1 rows of 4 are wanted");
  EXPECT_EQ(message_of([&] { checkpoint.at("sphere"); }), "tensor: the checkpoint has no \"sphere\"");
  EXPECT_EQ(message_of([&] { checkpoint.read_i64("cube", 0, 2, {}); }),
            "tensor \"cube\": F32 cannot be read as whole numbers");
  EXPECT_EQ(message_of([&] { checkpoint.view<double>("cube"); }), "tensor \"cube\": F32, but F64 is asked for");
}

TEST(Safetensors, ListedButNotRead) {
  const TemporaryDirectory directory;
  test::write_file(directory / "a.safetensors",
                   test::safetensors(R"({"w":{"dtype":"F8_E4M3","shape":[2,2],"data_offsets":[0,4]}})", "abcd"));
  const Checkpoint checkpoint = Checkpoint::open(directory / "a.safetensors");
  EXPECT_EQ(checkpoint.at("w").encoding, Encoding::kF8E4M3);
  EXPECT_EQ(checkpoint.bytes("w").size(), 4u);
  EXPECT_EQ(message_of([&] { checkpoint.read_f32("w"); }), "tensor \"w\": F8_E4M3 cannot be read as numbers");
}

// Files of others may put the data at any byte.
TEST(Safetensors, OddAlignmentIsReadButNotViewed) {
  const TemporaryDirectory directory;
  const std::vector<float> values = {1.5f, -2};
  for (const char* header : {R"({"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})",
                             R"({"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}} )"}) {
    test::write_file(directory / "a.safetensors", test::safetensors(header, test::bytes_of<float>(values)));
    const Checkpoint checkpoint = Checkpoint::open(directory / "a.safetensors");
    EXPECT_EQ(checkpoint.read_f32("w"), values);
    const std::uint64_t offset = checkpoint.at("w").offset;
    if (offset % 4 == 0) continue;
    EXPECT_EQ(message_of([&] { checkpoint.view<float>("w"); }),
              "tensor \"w\": at byte " + std::to_string(offset) +
                  " of its file, which is not a multiple of 4, so its numbers cannot be looked at in place; read them");
    return;
  }
  FAIL() << "neither header has an odd length";
}

TEST(Safetensors, AFileThatBecomesShorterIsNoticed) {
  const TemporaryDirectory directory;
  const std::vector<float> values(100000, 1.0f);
  const std::vector<NewTensor> tensors = {new_tensor<float>("w", {1000, 100}, values)};
  const fs::path path = directory / "a.safetensors";
  write_safetensors(path, tensors);
  const Checkpoint checkpoint = Checkpoint::open(path);
  const std::uint64_t size = fs::file_size(path);
  fs::resize_file(path, 200000);
  std::vector<float> row(100);
  checkpoint.read_f32("w", 0, 1, row);
  EXPECT_EQ(row[99], 1.0f);
  const std::uint64_t row_900 = checkpoint.at("w").offset + 900 * 400;
  EXPECT_EQ(message_of([&] { checkpoint.read_f32("w", 900, 1, row); }),
            path.string() + ": byte " + std::to_string(row_900) + ": the file ends here, but it had " +
                std::to_string(size) + " bytes when it was opened");
}

// One object in many threads, each with rows of its own.
TEST(Safetensors, ReadFromSeveralThreads) {
  const TemporaryDirectory directory;
  std::vector<float> values(400 * 300);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i);
  const std::vector<NewTensor> tensors = {new_tensor<float>("w", {400, 300}, values)};
  write_safetensors(directory / "a.safetensors", tensors);
  const Checkpoint checkpoint = Checkpoint::open(directory / "a.safetensors");
  std::vector<float> out(values.size());
  std::vector<std::thread> threads;
  for (std::int64_t part = 0; part < 4; ++part)
    threads.emplace_back([&, part, mine = checkpoint] {
      mine.read_f32("w", part * 100, 100, std::span(out).subspan(static_cast<std::size_t>(part) * 30000, 30000));
      EXPECT_EQ(mine.view<float>("w")[static_cast<std::size_t>(part)], static_cast<float>(part));
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(out, values);
}

// The writer ---------------------------------------------------------------------------------------------------------

std::set<std::string> names_in(const fs::path& directory) {
  std::set<std::string> names;
  for (const auto& entry : fs::directory_iterator(directory)) names.insert(entry.path().filename());
  return names;
}

TEST(SafetensorsWriter, RefusesBeforeItWrites) {
  const TemporaryDirectory directory;
  const std::vector<float> two = {1, 2};
  const auto message = [&](std::vector<NewTensor> tensors, const std::map<std::string, std::string>& metadata = {}) {
    return message_of([&] { write_safetensors(directory / "a.safetensors", tensors, metadata); });
  };
  const NewTensor good = new_tensor<float>("w", {2}, two);
  EXPECT_EQ(message({good, good}), "tensors: two have the name \"w\"");
  EXPECT_EQ(message({new_tensor<float>("w", {3}, two)}), "tensor \"w\": 8 bytes, but F32 of shape [3] has 12");
  EXPECT_EQ(message({new_tensor<float>("w", {-1}, two)}), "tensor \"w\": no tensor of F32 can have the shape [-1]");
  EXPECT_EQ(message({new_tensor<float>("w", {INT64_MAX, 4, 0}, {})}),
            "tensor \"w\": no tensor of F32 can have the shape [9223372036854775807, 4, 0]");
  EXPECT_EQ(
      message({new_tensor<float>("w\x1b[2J", {2}, two)}),
      "name: \"w\\x1b[2J\", but a tensor's name is UTF-8 without control characters, and not empty or __metadata__");
  EXPECT_EQ(
      message({new_tensor<float>("__metadata__", {2}, two)}),
      "name: \"__metadata__\", but a tensor's name is UTF-8 without control characters, and not empty or __metadata__");
  EXPECT_EQ(message({{"w", Encoding::kQ4_0, {32}, {}}}), "tensor \"w\": safetensors have no Q4_0");
  EXPECT_EQ(message({good}, {{"key", "\xff"}}), "metadata: \"\\xff\" is not UTF-8");
  EXPECT_EQ(message_of([&] { write_safetensors(directory / "no/where", {}, {}); }),
            (directory / "no/where").string() + ": cannot be written: No such file or directory");
  EXPECT_TRUE(names_in(directory.path()).empty());
}

// What was there before is still there, and nothing else is.
void check_untouched(const fs::path& path, const std::string& before) {
  EXPECT_EQ(test::read_file(path), before);
  EXPECT_EQ(names_in(path.parent_path()), std::set<std::string>{path.filename()});
}

TEST(SafetensorsWriter, NothingChangesWhenWritingFails) {
  const TemporaryDirectory directory;
  const fs::path path = directory / "a.safetensors";
  const std::vector<double> values(1000, 1.0);
  const std::vector<NewTensor> small = {new_tensor<double>("w", {10}, std::span(values).first(10))};
  const std::vector<NewTensor> large = {new_tensor<double>("w", {1000}, values)};
  write_safetensors(path, small);
  const std::string before = test::read_file(path);

  // A limit on the size of files is met in the middle of the data.
  struct rlimit limit = {}, tight = {};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &limit), 0);
  tight = limit;
  tight.rlim_cur = 4096;
  const auto old = std::signal(SIGXFSZ, SIG_IGN);
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &tight), 0);
  const std::string message = message_of([&] { write_safetensors(path, large); });
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
  std::signal(SIGXFSZ, old);
  EXPECT_EQ(message, path.string() + ": cannot be written: File too large");
  check_untouched(path, before);

  // Renaming is what fails.
  fs::create_directory(directory / "taken");
  test::write_file(directory / "taken" / "x", "x");
  EXPECT_EQ(message_of([&] { write_safetensors(directory / "taken", large); }),
            (directory / "taken").string() + ": cannot be written: Is a directory");
  EXPECT_EQ(names_in(directory.path()), (std::set<std::string>{"a.safetensors", "taken"}));
  EXPECT_EQ(names_in(directory / "taken"), std::set<std::string>{"x"});

  write_safetensors(path, large);
  EXPECT_EQ(Checkpoint::open(path).read_f64("w"), values);
}

// A file system of 64 KiB in a namespace of its own, so that no disk gets full but this one. As root in a namespace of
// users where one is needed to mount.
bool mount_small(const fs::path& place) {
  if (unshare(CLONE_NEWNS) != 0) {
    const std::string me = std::to_string(getuid()), group = std::to_string(getgid());
    if (unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0) return false;
    test::write_file("/proc/self/setgroups", "deny");
    test::write_file("/proc/self/uid_map", "0 " + me + " 1");
    test::write_file("/proc/self/gid_map", "0 " + group + " 1");
  }
  return ::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
         ::mount("tmpfs", place.c_str(), "tmpfs", 0, "size=64k") == 0;
}

int write_to_a_full_disk(const fs::path& mount) try {
  if (!mount_small(mount)) return 77;
  const std::vector<double> values(100000, 1.0);
  const std::vector<NewTensor> small = {new_tensor<double>("w", {10}, std::span(values).first(10))};
  const std::vector<NewTensor> large = {new_tensor<double>("w", {100000}, values)};
  const fs::path path = mount / "a.safetensors";
  write_safetensors(path, small);
  const std::string before = test::read_file(path);
  const std::string message = message_of([&] { write_safetensors(path, large); });
  EXPECT_EQ(message, path.string() + ": cannot be written: No space left on device");
  check_untouched(path, before);
  return ::testing::Test::HasFailure() ? 1 : 0;
} catch (const std::exception& error) {
  ADD_FAILURE() << error.what();
  return 1;
}

TEST(SafetensorsWriter, FullDisk) {
  const TemporaryDirectory directory;
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) _exit(write_to_a_full_disk(directory.path()));
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status));
  if (WEXITSTATUS(status) == 77) GTEST_SKIP() << "a small file system cannot be mounted here";
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

TEST(SafetensorsWriter, PermissionsAreThoseOfAnyNewFile) {
  const TemporaryDirectory directory;
  write_safetensors(directory / "a", {});
  test::write_file(directory / "b", "");
  EXPECT_EQ(fs::status(directory / "a").permissions(), fs::status(directory / "b").permissions());
}

}  // namespace
}  // namespace rootdk::checkpoint
