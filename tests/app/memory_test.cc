// Memory, as the command asks for it: what would not fit is refused in one line with both figures before anything is
// allocated or written, and the figure is what the command really takes. Everything hostile runs under ulimit -v, so
// that a failure here costs no more than the test.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <regex>
#include <span>
#include <string>
#include <vector>

#include "audit/sparse.h"
#include "support/process.h"
#include "support/rng.h"

namespace rootdk::test {
namespace {

using Json = nlohmann::json;
using Words = std::vector<std::string>;

constexpr std::int64_t kMB = 1'000'000, kGB = 1000 * kMB;

Words command(Words words) {
  words.insert(words.begin(), ROOTDK_COMMAND);
  return words;
}

std::string joined(const Words& words) {
  std::string out;
  for (const std::string& word : words) out += word.size() > 60 ? " …" : " " + word;
  return out;
}

struct Refusal {
  std::string line, blamed;  ///< blamed: "--layers: 100000", or "this"
  double need = 0, free = 0;
};

double bytes(const std::string& value, const std::string& unit) {
  double out = std::stod(value);
  for (const char* name : {"bytes", "kB", "MB", "GB", "TB", "PB", "EB"}) {
    if (unit == name) return out;
    out *= 1000;
  }
  ADD_FAILURE() << unit;
  return 0;
}

/// Nothing if it was not refused for its memory.
std::optional<Refusal> refusal_of(const Finished& done) {
  static const std::regex pattern(R"(rootdk [a-z]+: (.*) would take ([0-9.]+) ([a-zA-Z]+) of memory, )"
                                  R"(but ([0-9.]+) ([a-zA-Z]+) are free( \([^)]*\))?\n)");
  std::smatch found;
  if (done.status != 2 || !std::regex_match(done.err, found, pattern)) return {};
  EXPECT_EQ(done.out, "");
  const Refusal out = {done.err, found[1], bytes(found[2], found[3]), bytes(found[4], found[5])};
  EXPECT_GT(out.need, out.free) << done.err;
  return out;
}

Refusal refused(const Words& words, std::int64_t limit = 2 * kGB) {
  const Finished done = run_in(limit, command(words));
  const std::optional<Refusal> refusal = refusal_of(done);
  EXPECT_TRUE(refusal) << joined(words) << ": status " << done.status << ", " << done.err;
  return refusal.value_or(Refusal{done.err, "", 0, 0});
}

/// Without its output, which would make this process larger, and so every peak after it.
Finished run_quietly(Words words) {
  words.insert(words.begin(), {"sh", "-c", "exec \"$0\" \"$@\" > /dev/null"});
  return run(words);
}

// Arrays and models of nothing but holes -----------------------------------------------------------------------------

struct Holes : TemporaryDirectory {
  Holes() = default;

  std::string array(const std::string& name, const std::vector<std::int64_t>& shape,
                    const std::string& type = "<f4") const {
    std::string sizes;
    std::uint64_t count = 4;
    for (const std::int64_t size : shape)
      sizes += std::to_string(size) + ", ", count *= static_cast<std::uint64_t>(size);
    if (shape.size() > 1) sizes.resize(sizes.size() - 2);
    std::string header = "{'descr': '" + type + "', 'fortran_order': False, 'shape': (" + sizes + "), }";
    header.resize((10 + header.size() + 64) / 64 * 64 - 10, ' ');
    header.back() = '\n';
    const std::string start = Bytes()
                                  .raw("\x93NUMPY\x01")
                                  .number(std::uint8_t{0})
                                  .number(static_cast<std::uint16_t>(header.size()))
                                  .raw(header)
                                  .text();
    const std::filesystem::path path = *this / name;
    write_file(path, start);
    std::filesystem::resize_file(path, start.size() + count);
    return path.string();
  }

  /// Numbers of many digits.
  std::string filled(const std::string& name, std::int64_t count) const {
    const std::string path = array(name, {count});
    Rng rng(1);
    std::vector<float> numbers(static_cast<std::size_t>(count));
    for (float& x : numbers) x = static_cast<float>(rng.normal());
    std::string file = read_file(path);
    const std::string written = bytes_of(std::span<const float>(numbers));
    write_file(path, file.replace(file.size() - written.size(), written.size(), written));
    return path;
  }

  struct Sizes {
    std::int64_t layers = 1, width = 64, heads = 1, dim = 64, inner = 64;
  };
  std::string model(const std::string& name, const Sizes& s) const {
    audit::Sparse model;
    model.matrix("model.embed_tokens.weight", 100, s.width);
    for (std::int64_t layer = 0; layer < s.layers; ++layer) {
      const std::string at = "model.layers." + std::to_string(layer) + ".";
      for (const char* part : {"q", "k", "v"})
        model.matrix(at + "self_attn." + part + "_proj.weight", s.heads * s.dim, s.width);
      model.matrix(at + "self_attn.o_proj.weight", s.width, s.heads * s.dim);
      for (const char* part : {"gate", "up"}) model.matrix(at + "mlp." + part + "_proj.weight", s.inner, s.width);
      model.matrix(at + "mlp.down_proj.weight", s.width, s.inner);
      for (const char* norm : {"input_layernorm", "post_attention_layernorm"})
        model.add(at + norm + ".weight", std::to_string(s.width), s.width);
    }
    model.add("model.norm.weight", std::to_string(s.width), s.width);
    model.header += "}";
    const std::filesystem::path folder = *this / name;
    std::filesystem::create_directory(folder);
    write_file(folder / "model.safetensors",
               Bytes().number(std::uint64_t{model.header.size()}).raw(model.header).text());
    std::filesystem::resize_file(folder / "model.safetensors", 8 + model.header.size() + model.bytes);
    const Json config = {
        {"model_type", "llama"}, {"num_attention_heads", s.heads},     {"num_key_value_heads", s.heads},
        {"head_dim", s.dim},     {"max_position_embeddings", 1 << 20}, {"rms_norm_eps", 1e-5}};
    write_file(folder / "config.json", config.dump());
    return folder.string();
  }
};

std::int64_t size_of_files(const Words& words) {
  std::int64_t bytes = 0;
  for (const std::string& word : words) {
    std::error_code error;
    const std::filesystem::path path = word, model = path / "model.safetensors";
    if (std::filesystem::is_regular_file(path, error))
      bytes += static_cast<std::int64_t>(std::filesystem::file_size(path, error));
    if (std::filesystem::is_regular_file(model, error))
      bytes += static_cast<std::int64_t>(std::filesystem::file_size(model, error));
  }
  return bytes;
}

std::string many_dims() {
  std::string out = "1";
  for (int dk = 2; dk <= 12000; ++dk) out += "," + std::to_string(dk);
  return out;
}

// Tests --------------------------------------------------------------------------------------------------------------

TEST(CommandMemory, WhatIsTooLargeIsRefusedByItsName) {
  EXPECT_EQ(refused({"train", "--layers", "100000"}).blamed, "--layers: 100000");
  EXPECT_EQ(refused({"train", "--batch", "1000000"}).blamed, "--batch: 1000000");
  EXPECT_EQ(refused({"train", "--dk", "64,65536", "--layers", "8"}).blamed, "--dk: 65536, the largest of 2,");
  EXPECT_EQ(refused({"train", "--steps", "16777216"}).blamed, "--steps: 16777216");
  EXPECT_EQ(refused({"train", "--steps", "20000", "--seeds", "1000"}).blamed, "--seeds: 1000");
  EXPECT_EQ(refused({"train", "--layers", "2147483647", "--batch", "1048576", "--dk", "65536"}).blamed,
            "--layers: 2147483647");
  EXPECT_EQ(refused({"variance", "--dk", many_dims()}, 300 * kMB).blamed, "--dk: 12000, the largest of 12000,");
  EXPECT_EQ(refused({"phase", "--keys", "1048576", "--dk", "16,4096"}).blamed, "--keys: 1048576");
  EXPECT_EQ(refused({"phase", "--dk", "65536", "--keys", "65536"}).blamed, "--dk: 65536");
  EXPECT_EQ(refused({"gradient", "--keys", "1048576", "--queries", "65536"}).blamed, "--keys: 1048576");
  EXPECT_EQ(refused({"gradient", "--batches", "65536", "--keys", "65536"}).blamed, "--batches: 65536");
  EXPECT_EQ(refused({"precision", "--queries", "65536", "--keys", "65536"}).blamed, "--queries: 65536");
  EXPECT_EQ(refused({"playground", "--keys", "1048576"}, 500 * kMB).blamed, "--keys: 1048576");
  EXPECT_EQ(refused({"init", "--dk", "65536"}).blamed, "--dk: 65536");
  EXPECT_EQ(refused({"init", "--heads", "65536"}).blamed, "--heads: 65536");
  EXPECT_EQ(refused({"init", "--tokens", "65536", "--widths", "16384"}).blamed, "--tokens: 65536");
}

TEST(CommandMemory, ArraysAreRefusedByTheirShapes) {
  const Holes holes;
  const std::string row = holes.array("row.npy", {100'000'000}), heads = holes.array("heads.npy", {3'000'000, 2, 4});
  const std::string wide = holes.array("wide.npy", {2, 65536}), large = holes.array("large.npy", {16, 1 << 16, 256});
  EXPECT_EQ(refused({"explain", "--scores", row, "--dk", "64"}).blamed, "--scores: 100000000 of them");
  EXPECT_EQ(refused({"attend", heads, heads, heads}).blamed, "q, k, v: 3000000 heads of 2 queries and 2 keys");
  EXPECT_EQ(refused({"attend", large, large, large}, 6 * kGB).blamed,
            "q, k, v: 16 heads of 65536 queries and 65536 keys");
  EXPECT_EQ(refused({"whatif", heads, heads}).blamed, "q, k: [1, 3000000, 2, 4] and [1, 3000000, 2, 4]");
  EXPECT_GT(refused({"whatif", wide, wide}).need, 34e9);  // a matrix [d_k, d_k] of doubles
  // More than it has addresses for: not even mapped, and still one line.
  const Finished done = run_in(kGB, command({"attend", large, large, large}));
  EXPECT_EQ(done.status, 2);
  EXPECT_EQ(std::count(done.err.begin(), done.err.end(), '\n'), 1) << done.err;
}

TEST(CommandMemory, ModelsAreRefusedByWhatTheyAreRunOn) {
  const Holes holes;
  const std::string plain = holes.model("plain", {}),
                    wide = holes.model("wide", {.width = 4096, .heads = 32, .dim = 128});
  EXPECT_EQ(refused({"audit", holes.model("heads", {.dim = 40000})}).blamed, "this");
  EXPECT_EQ(refused({"audit", plain, "--tokens", "random:1x1000000"}, 900 * kMB).blamed,
            "--tokens: 1 sequences of 1000000");
  EXPECT_EQ(refused({"audit", wide, "--tokens", "random:1000x1000"}, 6 * kGB).blamed,
            "--tokens: 1000 sequences of 1000");
  EXPECT_EQ(refused({"audit", wide, "--inputs", holes.array("x.npy", {100'000, 4096})}, 4 * kGB).blamed,
            "--inputs: 100000 tokens");
  EXPECT_EQ(refused({"audit", wide, "--embeddings", holes.array("e.npy", {1 << 18, 4096})}, 6 * kGB).blamed,
            "embeddings: [262144, 4096]");
  write_file(holes / "seen.json", "[[1000]]");
  const std::string copy = (holes / "copy.safetensors").string();
  const Words clip = {"audit",           holes.model("clip", {.width = 65536, .dim = 4096}),
                      "--apply-qk-clip", "100",
                      "--max-scores",    (holes / "seen.json").string(),
                      "--out",           copy};
  EXPECT_EQ(refused(clip, size_of_files(clip) + 500 * kMB).blamed, "this");
  EXPECT_FALSE(std::filesystem::exists(copy));
}

TEST(CommandMemory, EveryVerbKnowsWhatItTakesAsItIs) {
  const Holes holes;
  const std::string q = holes.array("q.npy", {2, 4});
  for (const Words& words : std::vector<Words>{{"tour"},
                                               {"tour", "--quick"},
                                               {"bench"},
                                               {"doctor"},
                                               {"variance"},
                                               {"phase"},
                                               {"gradient"},
                                               {"precision"},
                                               {"init"},
                                               {"train"},
                                               {"playground"},
                                               {"explain", "--scores", "1,2", "--dk", "4"},
                                               {"attend", q, q, q},
                                               {"whatif", q, q},
                                               {"audit", holes.model("m", {})}}) {
    // The least that a program can start with is not known: the first limit at which it says anything of its own.
    std::optional<Refusal> refusal;
    for (std::int64_t limit = 16 * kMB; limit < 100 * kMB && !refusal; limit += 2 * kMB) {
      const Finished done = run_in(limit, command(words));
      if (done.status == 0) break;
      refusal = refusal_of(done);
    }
    ASSERT_TRUE(refusal) << joined(words);
    EXPECT_EQ(refusal->blamed.starts_with("--layers"), false) << refusal->line;
    EXPECT_TRUE(refusal->line.ends_with(" are free (ulimit -v)\n")) << refusal->line;
  }
}

TEST(CommandMemory, NothingIsWrittenByWhatWasRefused) {
  const Holes holes;
  const std::string heads = holes.array("heads.npy", {3'000'000, 2, 4}), row = holes.array("row.npy", {100'000'000});
  const TemporaryDirectory folder;
  const auto in = [&](const char* name) { return (folder / name).string(); };
  refused({"train", "--layers", "100000", "--out", in("runs")});
  refused({"train", "--layers", "100000", "--out", folder.path().string()});
  refused({"tour", "--out", in("tour")}, 40 * kMB);
  refused({"attend", heads, heads, heads, "--out", in("o.npy"), "--html", in("o.html")});
  refused({"whatif", heads, heads, "--html", in("w.html")});
  refused({"explain", "--scores", row, "--dk", "64", "--html", in("e.html")});
  refused({"audit", holes.model("heads", {.dim = 40000}), "--csv", in("a.csv"), "--html", in("a.html")});
  EXPECT_EQ(folder.files(), 0u);
}

TEST(CommandMemory, ATextWithoutEndIsRefused) {
  const Finished endless = run_in(kGB, command({"train", "--task", "text", "--file", "/dev/zero"}));
  ASSERT_TRUE(refusal_of(endless)) << endless.err;
  EXPECT_TRUE(refusal_of(endless)->blamed.starts_with("text: ")) << endless.err;
  const Holes holes;
  const Finished large = run_in(kGB, command({"train", "--task", "text", "--file", holes.array("text", {1 << 30})}));
  EXPECT_EQ(large.status, 2);
  EXPECT_NE(large.err.find("text: 4294967424 bytes in "), large.err.npos) << large.err;
}

// Said is what a refusal names under a limit that all of these are beyond; taken is the peak of the process without
// one, over that of a verb that does next to nothing. Both ends are from the issue: an estimate below lets a machine be
// filled, one far above refuses what would run.
TEST(CommandMemory, TakesWhatItSays) {
  const Holes holes;
  const std::string row = holes.filled("row.npy", 300'000), heads = holes.array("heads.npy", {10'000, 2, 4});
  const std::string large = holes.array("large.npy", {4, 8192, 512}), few = holes.array("few.npy", {4, 4, 512});
  const std::int64_t nothing = run_quietly(command({"rules"})).peak;
  for (const Words& words : std::vector<Words>{
           {"phase", "--keys", "32768", "--dk", "1024", "--queries", "8", "--batches", "2", "--rules", "sqrt_dk"},
           {"phase", "--keys", "64", "--dk", "1024", "--queries", "32768", "--batches", "2", "--rules", "sqrt_dk"},
           {"gradient", "--keys", "16384", "--dk", "16", "--queries", "2048", "--batches", "2", "--rules", "sqrt_dk"},
           {"gradient", "--keys", "65536", "--dk", "4", "--queries", "8", "--batches", "100", "--rules", "sqrt_dk"},
           {"precision", "--keys", "1048576", "--queries", "6", "--dk", "4", "--rules", "sqrt_dk", "--gains", "1"},
           {"init", "--widths", "2048", "--dk", "16", "--heads", "128", "--tokens", "16", "--batches", "2"},
           {"init", "--widths", "16", "--dk", "1024", "--heads", "1", "--tokens", "4", "--batches", "2"},
           {"variance", "--dk", many_dims().substr(0, 23892), "--pairs", "90112", "--components", "rademacher"},
           {"train", "--layers", "20", "--steps", "2", "--lr", "0.001", "--seeds", "1", "--rules", "sqrt_dk",
            "--threads", "1"},
           {"train", "--layers", "20", "--steps", "2", "--lr", "0.001", "--seeds", "1", "--rules", "sqrt_dk",
            "--threads", "1", "--batch", "1", "--dk", "2048"},
           {"train", "--batch", "2000", "--steps", "1", "--lr", "0.001", "--seeds", "1", "--rules", "sqrt_dk",
            "--threads", "1"},
           {"playground", "--keys", "524288", "--queries", "8"},
           {"playground", "--keys", "262144", "--dk", "4", "--queries", "4", "--json"},
           {"playground", "--keys", "2048", "--dk", "1024", "--queries", "8192", "--rule", "qk_norm"},
           {"explain", "--scores", row, "--dk", "64"},
           {"explain", "--scores", row, "--dk", "64", "--json"},
           {"explain", "--scores", row, "--dk", "64", "--html", (holes / "e.html").string(), "--force"},
           {"attend", heads, heads, heads},
           {"attend", heads, heads, heads, "--json"},
           {"attend", few, large, large, "--out", (holes / "o.npy").string(), "--force"},
           {"attend", large, few, few, "--stats", "none", "--out", (holes / "o.npy").string(), "--force"},
           {"whatif", heads, heads, "--rules", "sqrt_dk"},
           {"whatif", large, few, few, "--rules", "sqrt_dk,temperature"},
           {"whatif", few, large, large, "--rules", "sqrt_dk,qk_norm"},
           {"audit", holes.model("dim", {.dim = 1024})},
           {"audit", holes.model("many", {.layers = 500, .heads = 16, .dim = 4})},
           {"audit", holes.model("many2", {.layers = 200, .heads = 16, .dim = 4}), "--json"},
           {"audit", holes.model("wide", {.width = 2048, .heads = 2, .dim = 64}), "--inputs",
            holes.array("x.npy", {8192, 2048})},
           {"audit", holes.model("run", {.width = 2048, .heads = 16, .dim = 128, .inner = 4096}), "--tokens",
            "random:1x512"},
           {"audit", holes.model("long", {.width = 64, .heads = 16, .dim = 16}), "--tokens", "random:64x1024"}}) {
    const double said = refused(words, 75 * kMB + size_of_files(words)).need;
    const Finished done = run_quietly(command(words));
    ASSERT_EQ(done.status, 0) << joined(words) << done.err;
    const double taken = static_cast<double>(done.peak - nothing);
    RecordProperty(joined(words), std::to_string(said / taken));
    EXPECT_GE(said, 0.95 * taken) << joined(words) << ": said " << said / 1e6 << " MB, took " << taken / 1e6;
    EXPECT_LE(said, 2.0 * taken) << joined(words) << ": said " << said / 1e6 << " MB, took " << taken / 1e6;
  }
}

// Whatever the limit, memory is refused in the one line or it suffices: it never runs out on the way.
TEST(CommandMemory, NeverRunsOutOnTheWay) {
  const Holes holes;
  const std::string row = holes.filled("row.npy", 100'000), heads = holes.array("heads.npy", {4'000, 2, 4});
  for (const Words& words : std::vector<Words>{
           {"phase", "--keys", "16384", "--dk", "256", "--queries", "8", "--batches", "2", "--rules", "sqrt_dk"},
           {"gradient", "--keys", "8192", "--dk", "16", "--queries", "1024", "--batches", "2", "--rules", "sqrt_dk"},
           {"train", "--layers", "6", "--steps", "1", "--lr", "0.001", "--seeds", "2", "--rules", "sqrt_dk"},
           {"explain", "--scores", row, "--dk", "64", "--json"},
           {"attend", heads, heads, heads, "--json"},
           {"whatif", heads, heads, "--rules", "sqrt_dk"},
           {"bench", "--rounds", "1"},
           {"audit", holes.model("many", {.layers = 60, .heads = 16, .dim = 4}), "--json"}}) {
    const std::int64_t files = size_of_files(words);
    const Refusal first = refused(words, 40 * kMB + files);
    int finished = 0;
    for (const double share : {0.9, 1.0, 1.05, 1.2, 2.0}) {
      const Finished done = run_in(40 * kMB + files + static_cast<std::int64_t>(share * first.need), command(words));
      EXPECT_TRUE(done.status == 0 || refusal_of(done))
          << joined(words) << " at " << share << ": " << done.status << ", " << done.err;
      finished += done.status == 0;
    }
    EXPECT_GE(finished, 2) << joined(words);  // and it does suffice
  }
}

// Runs at a time are as many as there is memory for; what they find is the same.
TEST(CommandMemory, TrainsOneAfterAnotherWhereMemoryIsShort) {
  const Words words = {"train", "--layers", "12", "--steps", "1",       "--lr",
                       "0.001", "--seeds",  "2",  "--rules", "sqrt_dk", "--json"};
  const Refusal one = refused(words, 60 * kMB);
  const Finished tight = run_in(60 * kMB + static_cast<std::int64_t>(1.3 * one.need), command(words)),
                 wide = run(command(words));
  ASSERT_EQ(tight.status, 0) << tight.err;
  ASSERT_EQ(wide.status, 0) << wide.err;
  Json a = Json::parse(tight.out), b = Json::parse(wide.out);
  for (Json* json : {&a, &b}) json->erase("parallel_runs");
  EXPECT_EQ(a, b);
}

}  // namespace
}  // namespace rootdk::test
