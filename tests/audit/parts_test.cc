// An audit in parts is the audit of everything, whoever reads which layers; and of files that lie elsewhere nothing is
// read but what was fetched.
#include "rootdk/audit/parts.h"

#include <gtest/gtest.h>

#include <cstring>

#include "audit/models.h"
#include "rootdk/audit/recognise.h"
#include "support/files.h"
#include "support/message.h"

namespace rootdk::audit {
namespace {

using Bytes = std::vector<std::byte>;
using test::message_of;

/// A model with embeddings of which only some are looked at, in a folder.
struct Parts : testing::Test {
  Parts() {
    Rng rng(7);
    Made made = make_llama(rng, {.qk_norm = true});
    made.add("model.embed_tokens.weight", random_matrix(rng, 3000, 24));
    write(made, folder.path());
  }

  Audit joined_of(std::initializer_list<Bytes> parts) const {
    const std::vector<std::span<const std::byte>> all(parts.begin(), parts.end());
    return joined(model(), options, all);
  }
  Bytes part(std::vector<std::size_t> layers) const {
    return packed(audit_layers(file(), model(), layers, options), layers);
  }
  checkpoint::Checkpoint file() const { return checkpoint::Checkpoint::open(folder.path()); }
  Model model() const { return recognise(file()); }

  test::TemporaryDirectory folder;
  Options options = {.contexts = {100, 5000}, .judge_at = 77};
  const std::vector<std::size_t> both = {0, 1};
};

TEST_F(Parts, JoinedAreTheWholeToTheBit) {
  const Audit whole = audit(file(), model(), options);
  ASSERT_TRUE(whole.layers[0].heads[0].on_embeddings);
  for (const Audit& found : {joined_of({part({0}), part({1})}), joined_of({part({1, 0})}),
                             joined_of({part({}), part({1}), part({}), part({0})})}) {
    EXPECT_EQ(packed(found, both), packed(whole, both));
    EXPECT_EQ(found.contexts, whole.contexts);
    EXPECT_EQ(found.judged_at, 77);
    EXPECT_EQ(found.layers[1].heads[2].judgement.words, whole.layers[1].heads[2].judgement.words);
  }
}

TEST_F(Parts, AreRefusedWhereOneIsMissingTwiceOrBroken) {
  const Bytes first = part({0}), second = part({1});
  EXPECT_EQ(message_of([&] { joined_of({first}); }), "parts: layer 1 is in none of them");
  EXPECT_EQ(message_of([&] { joined_of({first, second, first}); }), "parts: layer 0 is in two of them");
  EXPECT_EQ(message_of([&] { part({2}); }), "layers: 2, but there are 2");
  Bytes other = first;
  other[0] ^= std::byte{1};
  EXPECT_EQ(message_of([&] { joined_of({other, second}); }), "parts: one of them is not what this version packs");
  for (std::size_t size = 0; size < first.size(); size += 1 + size / 16) {
    const Bytes cut(first.begin(), first.begin() + static_cast<std::ptrdiff_t>(size));
    EXPECT_TRUE(message_of([&] { joined_of({cut, second}); }).starts_with("parts: ")) << size;
  }
  Bytes longer = first;
  longer.push_back({});
  EXPECT_EQ(message_of([&] { joined_of({longer, second}); }), "parts: more than findings is in one of them");
}

TEST_F(Parts, ReadNothingButWhatTheySay) {
  const std::string bytes = test::read_file(folder / "model.safetensors");
  std::uint64_t header = 0;
  std::memcpy(&header, bytes.data(), sizeof(header));
  checkpoint::Elsewhere shard{"model.safetensors", bytes.size(), {}};
  std::uint64_t fetched = 0;
  const auto fetch = [&](std::uint64_t offset, std::uint64_t size) {
    const auto* const begin = reinterpret_cast<const std::byte*>(bytes.data()) + offset;
    shard.runs.push_back({offset, {begin, begin + size}});
    fetched += size;
  };
  fetch(0, 8 + header);
  for (const Extent& e : reads_of_embeddings(file(), model())) fetch(e.offset, e.bytes);
  for (const Extent& e : reads_of(file(), model(), std::vector<std::size_t>{1})) fetch(e.offset, e.bytes);
  EXPECT_LT(fetched, bytes.size() / 2) << "a sample of the embeddings, and one layer";

  const auto remote = [&](const std::filesystem::path& path) {
    return checkpoint::Checkpoint::open(path, {}, {shard});
  };
  const std::filesystem::path away = folder / "away";
  std::filesystem::create_directory(away);
  std::filesystem::copy(folder / "config.json", away / "config.json");
  const Model here = recognise(remote(away));
  const std::vector<std::size_t> second = {1}, first = {0};
  EXPECT_EQ(packed(audit_layers(remote(away), here, second, options), second), part({1}));
  EXPECT_TRUE(
      message_of([&] { audit_layers(remote(away), here, first, options); }).ends_with("lies on another machine"));
  shard.size = 100;
  EXPECT_TRUE(message_of([&] { remote(away); }).ends_with("were fetched from here, but the file has 100"));
}

}  // namespace
}  // namespace rootdk::audit
