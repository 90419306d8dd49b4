// Which files of a directory are taken, shards with and without an index, and links.
#include <gtest/gtest.h>

#include "rootdk/checkpoint/checkpoint.h"
#include "rootdk/checkpoint/npy.h"
#include "rootdk/checkpoint/safetensors.h"
#include "support/files.h"
#include "support/gguf_writer.h"
#include "support/message.h"

namespace rootdk::checkpoint {
namespace {

namespace fs = std::filesystem;
using test::message_of;

class Directory : public ::testing::Test {
 protected:
  // One tensor of this name and value.
  void add(const std::string& file, const std::string& tensor, float value = 0) {
    const std::vector<NewTensor> tensors = {new_tensor<float>(tensor, {1}, std::span<const float>(&value, 1))};
    fs::create_directories((directory_ / file).parent_path());
    write_safetensors(directory_ / file, tensors, {{"from", file}});
  }
  void add_gguf(const std::string& file, const std::string& tensor) {
    test::write_file(directory_ / file,
                     test::GgufWriter().tensor({tensor, {1}, test::kGgmlF32, std::string(4, '\0')}).bytes());
  }
  void add_index(const std::string& file, const std::string& map) {
    test::write_file(directory_ / file, "{\"weight_map\":{" + map + "}}");
  }
  std::string names(const fs::path& path, const OpenOptions& options = {}) {
    const Checkpoint checkpoint = Checkpoint::open(path, options);
    std::string all;
    for (const TensorInfo& tensor : checkpoint.tensors()) all += (all.empty() ? "" : " ") + tensor.name;
    return all;
  }
  std::string refusal(const OpenOptions& options = {}) {
    return message_of([&] { Checkpoint::open(directory_.path(), options); });
  }
  std::string here() const { return directory_.path().string(); }

  test::TemporaryDirectory directory_;
};

TEST_F(Directory, TheFirstOfTheListIsTaken) {
  EXPECT_EQ(refusal(), here() + ": no .safetensors, .gguf or .npz is in it");
  add_gguf("x.gguf", "in gguf");
  EXPECT_EQ(names(directory_.path()), "in gguf");
  add("other.safetensors", "in other");
  EXPECT_EQ(names(directory_.path()), "in other");
  add("more.safetensors", "in more");
  EXPECT_EQ(refusal(), here() + ": more.safetensors, other.safetensors: open one of them");
  add("model.safetensors", "in model");
  EXPECT_EQ(names(directory_.path()), "in model");
  add_index("other.safetensors.index.json", "\"in other\":\"other.safetensors\"");
  EXPECT_EQ(names(directory_.path()), "in other");
  add_index("more.safetensors.index.json", "\"in more\":\"more.safetensors\"");
  EXPECT_EQ(refusal(), here() + ": more.safetensors.index.json, other.safetensors.index.json: open one of them");
  add_index("model.safetensors.index.json", "\"in more\":\"more.safetensors\",\"in other\":\"other.safetensors\"");
  EXPECT_EQ(names(directory_.path()), "in more in other");
  EXPECT_EQ(names(directory_ / "other.safetensors.index.json"), "in other");
  EXPECT_EQ(names(directory_ / "x.gguf"), "in gguf");
}

TEST_F(Directory, ShardsWithoutAnIndex) {
  add("m-00001-of-00003.safetensors", "a", 1);
  add("m-00003-of-00003.safetensors", "c", 3);
  EXPECT_EQ(refusal(), here() + "/m-00002-of-00003.safetensors: missing, though m-00001-of-00003.safetensors is there");
  add("m-00002-of-00003.safetensors", "b", 2);
  const Checkpoint checkpoint = Checkpoint::open(directory_.path());
  EXPECT_EQ(checkpoint.files().size(), 3u);
  EXPECT_EQ(checkpoint.files()[checkpoint.at("c").file], directory_ / "m-00003-of-00003.safetensors");
  EXPECT_EQ(checkpoint.read_f32("b"), std::vector<float>{2});
  EXPECT_EQ(*checkpoint.find_metadata("from")->text(), "m-00001-of-00003.safetensors");
  EXPECT_EQ(names(directory_ / "m-00002-of-00003.safetensors"), "b");
  add("m-00002-of-00003.safetensors", "a");
  const std::string second = here() + "/m-00002-of-00003.safetensors";
  EXPECT_EQ(refusal(), second + ": byte " + std::to_string(fs::file_size(second) - 4) +
                           ": tensor \"a\" is here and in " + here() + "/m-00001-of-00003.safetensors, too");
  add("n-00001-of-00001.safetensors", "d");
  EXPECT_EQ(refusal(),
            here() + ": m-00001-of-00003.safetensors, m-00002-of-00003.safetensors, m-00003-of-00003.safetensors, "
                     "n-00001-of-00001.safetensors: open one of them");
}

TEST_F(Directory, ShardsOfGguf) {
  add_gguf("m-00001-of-00002.gguf", "a");
  add_gguf("m-00002-of-00002.gguf", "b");
  EXPECT_EQ(names(directory_.path()), "a b");
}

TEST_F(Directory, WhatTheIndexDoesNotNameIsLeftOut) {
  const std::vector<float> one = {1};
  const std::vector<NewTensor> tensors = {new_tensor<float>("a", {1}, one), new_tensor<float>("b", {1}, one)};
  write_safetensors(directory_ / "m.safetensors", tensors);
  add_index("model.safetensors.index.json", "\"b\":\"m.safetensors\"");
  EXPECT_EQ(names(directory_.path()), "b");
}

TEST_F(Directory, ConfigBesideIt) {
  add("model.safetensors", "a");
  EXPECT_EQ(Checkpoint::open(directory_.path()).config(), std::nullopt);
  test::write_file(directory_ / "config.json", "{\"n\": 1}");
  EXPECT_EQ(Checkpoint::open(directory_.path()).config(), "{\"n\": 1}");
  EXPECT_EQ(Checkpoint::open(directory_ / "model.safetensors").config(), "{\"n\": 1}");
  fs::resize_file(directory_ / "config.json", (1 << 24) + 1);
  EXPECT_EQ(message_of([&] { Checkpoint::open(directory_.path()).config(); }),
            here() + "/config.json: 16777217 bytes, but at most 16777216 are taken");
}

TEST_F(Directory, FilesAreKnownByTheirFirstBytes) {
  add("model.safetensors", "a");
  fs::rename(directory_ / "model.safetensors", directory_ / "5f3a");
  EXPECT_EQ(names(directory_ / "5f3a"), "a");
  add_gguf("blob", "b");
  EXPECT_EQ(Checkpoint::open(directory_ / "blob").format(), Format::kGguf);
  const std::vector<std::int64_t> scalar;
  const std::vector<float> one = {1};
  write_npy(directory_ / "array", scalar, one);
  EXPECT_EQ(Checkpoint::open(directory_ / "array").format(), Format::kNpy);
  test::write_file(directory_ / "text", "some text");
  EXPECT_EQ(message_of([&] { Checkpoint::open(directory_ / "text"); }),
            here() + "/text: byte 0: neither safetensors, GGUF, .npz nor .npy");
}

TEST_F(Directory, LinksStayInside) {
  add("outside/a.safetensors", "a");
  add("inside/real.safetensors", "a");
  const fs::path inside = directory_ / "inside";
  test::write_file(inside / "model.safetensors.index.json", R"({"weight_map":{"a":"link.safetensors"}})");
  fs::create_symlink("real.safetensors", inside / "link.safetensors");
  EXPECT_EQ(names(inside), "a");
  fs::remove(inside / "link.safetensors");
  fs::create_symlink("../outside/a.safetensors", inside / "link.safetensors");
  EXPECT_EQ(message_of([&] { Checkpoint::open(inside); }),
            inside.string() + "/link.safetensors: a symbolic link that leads out of its directory, to " + here() +
                "/outside/a.safetensors");
  EXPECT_EQ(names(inside, {.follow_links = true}), "a");
  // The path itself is the user's own word.
  EXPECT_EQ(names(inside / "link.safetensors"), "a");
  fs::create_directory_symlink(directory_ / "outside", directory_ / "way");
  EXPECT_EQ(names(directory_ / "way"), "a");
}

// snapshots/REVISION/NAME leads to blobs/HASH.
TEST_F(Directory, HuggingFaceCache) {
  add("models--x--y/blobs/1234.safetensors", "a");
  fs::rename(directory_ / "models--x--y/blobs/1234.safetensors", directory_ / "models--x--y/blobs/1234");
  const fs::path snapshot = directory_ / "models--x--y/snapshots/abcd";
  fs::create_directories(snapshot);
  test::write_file(directory_ / "models--x--y/blobs/5678", R"({"weight_map":{"a":"m.safetensors"}})");
  test::write_file(directory_ / "models--x--y/blobs/9abc", "{}");
  fs::create_symlink("../../blobs/1234", snapshot / "m.safetensors");
  fs::create_symlink("../../blobs/5678", snapshot / "model.safetensors.index.json");
  fs::create_symlink("../../blobs/9abc", snapshot / "config.json");
  EXPECT_EQ(names(snapshot), "a");
  EXPECT_EQ(names(snapshot / "model.safetensors.index.json"), "a");
  EXPECT_EQ(Checkpoint::open(snapshot).config(), "{}");
  // Only the blobs: a neighbour is outside.
  fs::create_directory(directory_ / "models--x--y/other");
  fs::copy_file(directory_ / "models--x--y/blobs/1234", directory_ / "models--x--y/other/1234");
  fs::remove(snapshot / "m.safetensors");
  fs::create_symlink("../../other/1234", snapshot / "m.safetensors");
  EXPECT_EQ(message_of([&] { Checkpoint::open(snapshot); }),
            snapshot.string() + "/m.safetensors: a symbolic link that leads out of its directory, to " + here() +
                "/models--x--y/other/1234");
}

}  // namespace
}  // namespace rootdk::checkpoint
