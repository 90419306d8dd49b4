// --html of the verbs that have one result: the page holds what --json says, and is written over nothing it should not
// be. How pages look is for tests/report/page_test.py.
#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "support/process.h"
#include "support/rng.h"

namespace rootdk::test {
namespace {

using Json = nlohmann::json;
using Words = std::vector<std::string>;

Finished rootdk(Words words) {
  words.insert(words.begin(), ROOTDK_COMMAND);
  return run(words);
}

/// [1, 1, 8, 16], f32.
std::string npy(std::uint64_t seed, float size) {
  std::string header = "{'descr': '<f4', 'fortran_order': False, 'shape': (1, 1, 8, 16), }";
  header.resize(117, ' ');
  header += '\n';
  std::string out = std::string("\x93NUMPY\x01", 7) + '\0' + static_cast<char>(header.size()) + '\0' + header;
  Rng rng(seed);
  for (int i = 0; i < 8 * 16; ++i) {
    const float x = size * static_cast<float>(rng.normal());
    out.append(reinterpret_cast<const char*>(&x), sizeof x);
  }
  return out;
}

struct Arrays {
  explicit Arrays(float size = 1) {
    for (const auto& [name, seed] : {std::pair{"q.npy", 1}, {"k.npy", 2}, {"v.npy", 3}})
      write_file(folder / name, npy(static_cast<std::uint64_t>(seed), name[0] == 'v' ? 1 : size));
  }
  std::string operator[](const std::string& name) const { return (folder.path() / name).string(); }
  TemporaryDirectory folder;
};

Json results_in(const std::string& page) {
  const std::string start = "<script type=\"application/json\" id=\"results\">";
  const std::size_t from = page.find(start) + start.size();
  return Json::parse(page.substr(from, page.find("</script", from) - from));
}

TEST(CommandPages, HoldWhatTheJsonSays) {
  const Arrays arrays;
  const Words verbs[] = {{"explain", "--scores", "14,10,12", "--dk", "64"},
                         {"whatif", arrays["q.npy"], arrays["k.npy"], arrays["v.npy"]},
                         {"attend", arrays["q.npy"], arrays["k.npy"], arrays["v.npy"]}};
  for (Words words : verbs) {
    const std::string verb = words[0], path = arrays[verb + ".html"];
    words.insert(words.end(), {"--json", "--html", path});
    const Finished done = rootdk(words);
    ASSERT_EQ(done.status, 0) << done.err;
    const std::string page = read_file(path);
    const Json results = results_in(page), data = Json::parse(done.out);
    ASSERT_EQ(results["chapters"].size(), 1u);
    EXPECT_EQ(results["chapters"][0]["data"], data) << verb;
    EXPECT_EQ(results["chapters"][0]["conclusion"], data["conclusion"]);
    EXPECT_EQ(results["complete"], true);
    const std::string about = data["conclusion"];
    EXPECT_NE(page.find("<meta name=\"description\" content=\"" + about + "\">"), page.npos) << verb;
    // A page of its own is replaced.
    EXPECT_EQ(rootdk(words).status, 0);
  }
}

TEST(CommandPages, ReplaceNothingOfOthers) {
  const Arrays arrays;
  const std::string notes = arrays["notes.txt"], q = read_file(arrays["q.npy"]);
  write_file(notes, "mine");
  const Words verbs[] = {{"explain", "--scores", "14,10,12", "--dk", "64"},
                         {"whatif", arrays["q.npy"], arrays["k.npy"]},
                         {"attend", arrays["q.npy"], arrays["k.npy"], arrays["v.npy"]}};
  for (Words words : verbs) {
    words.insert(words.end(), {"--html", notes});
    const Finished refused = rootdk(words);
    EXPECT_EQ(refused.status, 2);
    EXPECT_EQ(refused.out, "");
    EXPECT_NE(refused.err.find("notes.txt is there already"), refused.err.npos) << refused.err;
    EXPECT_EQ(read_file(notes), "mine");
    if (words[0] == "explain") continue;
    words.back() = arrays["q.npy"];
    words.push_back("--force");
    EXPECT_NE(rootdk(words).err.find("is read by this command"), std::string::npos);
    EXPECT_EQ(read_file(arrays["q.npy"]), q);
  }
  EXPECT_NE(
      rootdk({"attend", arrays["q.npy"], arrays["k.npy"], arrays["v.npy"], "--out", arrays["x"], "--html", arrays["x"]})
          .err.find("also where another result goes"),
      std::string::npos);
  EXPECT_EQ(rootdk({"explain", "--scores", "14,10,12", "--dk", "64", "--html", notes, "--force"}).status, 0);
  EXPECT_NE(read_file(notes), "mine");
}

// Where scores leave f32 there is nothing to compare, and no dash to conclude from.
TEST(CommandPages, WhatifConcludesNothingFromNothing) {
  for (const float size : {1e18f, 1e25f}) {
    const Arrays arrays(size);
    const Finished done = rootdk({"whatif", arrays["q.npy"], arrays["k.npy"], "--json"});
    ASSERT_EQ(done.status, 0) << done.err;
    const std::string said = Json::parse(done.out)["conclusion"];
    EXPECT_EQ(said.find("–"), said.npos) << said;
    EXPECT_NE(said.find("scores leave the range of f32, and nothing follows"), said.npos) << said;
    EXPECT_EQ(said.find("1/√d_k leaves"), said.npos) << said;
    EXPECT_NE(said.find(" leaves the softmax sharpest"), said.npos) << "of those that are finite: " << said;
    const Finished alone = rootdk({"whatif", arrays["q.npy"], arrays["k.npy"], "--rules", "sqrt_dk,none", "--json"});
    const std::string nothing = Json::parse(alone.out)["conclusion"];
    EXPECT_NE(nothing.find("; under every rule scores leave"), nothing.npos) << nothing;
  }
  const Arrays arrays;
  EXPECT_EQ(rootdk({"whatif", arrays["q.npy"], arrays["k.npy"]}).out.find("nothing follows"), std::string::npos);
}

}  // namespace
}  // namespace rootdk::test
