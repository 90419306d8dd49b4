// The command among other programs: bad input is one line and exit 2, files are whole or not there, and Ctrl-C leaves
// what is finished.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "support/process.h"
#include "support/rng.h"

namespace rootdk::test {
namespace {

using Json = nlohmann::json;
using Words = std::vector<std::string>;

Words command(Words words) {
  words.insert(words.begin(), ROOTDK_COMMAND);
  return words;
}

Finished rootdk(const Words& words) { return run(command(words)); }

/// Refused: nothing on standard output, one line on standard error, status 2. Returns the line.
std::string refusal(const Finished& done) {
  EXPECT_EQ(done.status, 2) << done.out << done.err;
  EXPECT_EQ(done.out, "");
  EXPECT_EQ(std::count(done.err.begin(), done.err.end(), '\n'), 1) << done.err;
  EXPECT_TRUE(done.err.starts_with("rootdk")) << done.err;
  return done.err.substr(0, done.err.find('\n'));
}

std::string refused(const Words& words) { return refusal(rootdk(words)); }

bool until(const std::function<bool()>& condition) {
  for (int i = 0; i < 6000; ++i) {
    if (condition()) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return false;
}

const Words kVerbs = {"tour",  "explain", "variance", "phase", "gradient", "precision", "init",
                      "train", "whatif",  "attend",   "plan",  "rules",    "doctor",    "bench"};

// .npy ---------------------------------------------------------------------------------------------------------------

std::string npy(const std::string& header, const std::string& numbers) {
  std::string padded = header;
  padded.resize((10 + header.size() + 64) / 64 * 64 - 10, ' ');
  padded.back() = '\n';
  std::string out = std::string("\x93NUMPY\x01", 7) + '\0';
  out += static_cast<char>(padded.size() & 0xFF);
  out += static_cast<char>(padded.size() >> 8);
  return out + padded + numbers;
}

template <class T>
std::string bytes_of(const std::vector<T>& numbers) {
  return {reinterpret_cast<const char*>(numbers.data()), numbers.size() * sizeof(T)};
}

std::string header(const std::string& type, const std::string& shape) {
  return "{'descr': '" + type + "', 'fortran_order': False, 'shape': " + shape + ", }";
}

std::vector<float> random(std::size_t count, std::uint64_t seed) {
  Rng rng(seed);
  std::vector<float> out(count);
  for (float& x : out) x = static_cast<float>(rng.normal());
  return out;
}

/// q [2, 3, 4], k [2, 5, 4] and v [2, 5, 6] in a folder.
struct Arrays {
  TemporaryDirectory folder;
  std::vector<float> q = random(24, 1), k = random(40, 2), v = random(60, 3);

  Arrays() {
    write_file(folder / "q.npy", npy(header("<f4", "(2, 3, 4)"), bytes_of(q)));
    write_file(folder / "k.npy", npy(header("<f4", "(2, 5, 4)"), bytes_of(k)));
    write_file(folder / "v.npy", npy(header("<f4", "(2, 5, 6)"), bytes_of(v)));
  }
  std::string operator[](const std::string& name) const { return (folder / name).string(); }
  Words attend(const Words& more = {}) const {
    Words all = {"attend", (*this)["q.npy"], (*this)["k.npy"], (*this)["v.npy"]};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }
};

// Talking ------------------------------------------------------------------------------------------------------------

TEST(CommandLine, EveryVerbHasHelpWithExamples) {
  const Finished help = rootdk({"--help"});
  EXPECT_EQ(help.status, 0);
  EXPECT_EQ(rootdk({}).out, help.out);
  for (const std::string& verb : kVerbs) {
    EXPECT_NE(help.out.find("\n  " + verb + " "), help.out.npos) << verb;
    const Finished done = rootdk({verb, "--help"});
    EXPECT_EQ(done.status, 0);
    EXPECT_EQ(done.err, "");
    EXPECT_NE(done.out.find("Examples:\n  rootdk " + verb), done.out.npos) << done.out;
    for (const char* option : {"--json", "--seed", "--threads"})
      EXPECT_NE(done.out.find(option), done.out.npos) << verb << " " << option;
  }
  EXPECT_EQ(rootdk({"--version"}).out.substr(0, 7), "rootdk ");
}

TEST(CommandLine, BadInputIsOneLine) {
  EXPECT_EQ(refused({"demo"}), "rootdk: unknown verb: demo; try rootdk --help");
  EXPECT_EQ(refused({"--wrong"}), "rootdk: unknown option: --wrong; try rootdk --help");
  for (const std::string& verb : kVerbs) EXPECT_NE(refused({verb, "--wrong", "a", "b", "c"}), "");
  EXPECT_EQ(refused({"phase", "--wrong"}), "rootdk phase: unknown option: --wrong; try rootdk phase --help");
  EXPECT_EQ(refused({"rules", "more"}), "rootdk rules: 'more' is not expected; try rootdk rules --help");
  EXPECT_EQ(refused({"--json", "rules"}), "rootdk rules: --json goes behind the verb: rootdk rules --json");
  EXPECT_EQ(refused({"explain"}), "rootdk explain: q: missing; scores, or q and at least one k, are wanted");
  EXPECT_EQ(refused({"explain", "--scores", "1,2"}),
            "rootdk explain: --dk: missing; scores alone do not say what d_k was");
  for (const char* scores : {"--scores", "--q"})
    for (const char* dk : {"0", "-3"})
      EXPECT_EQ(refused({"explain", scores, "1,2", "--k", "1,2", "--dk", dk}),
                std::string("rootdk explain: --dk: ") + dk + ", but a whole number of at least 1 is wanted");
  EXPECT_EQ(refused({"explain", "--scores", "1,x", "--dk", "4"}),
            "rootdk explain: --scores: \"x\" is not a finite number");
  EXPECT_EQ(refused({"explain", "--scores", "1,inf", "--dk", "4"}),
            "rootdk explain: --scores: \"inf\" is not a finite number");
  EXPECT_EQ(refused({"explain", "--scores", "1,", "--dk", "4"}),
            "rootdk explain: --scores: \"1,\" has an empty place; a list like 1,2,3 is wanted");
  EXPECT_EQ(refused({"explain", "--q", "1,2", "--k", "1"}), "rootdk explain: k: 1 component, but q has 2");
  EXPECT_EQ(refused({"variance", "--dk", "0"}), "rootdk variance: dk: 0, but a whole number from 1 to 65536 is wanted");
  EXPECT_EQ(refused({"variance", "--pairs", "1e6"}), "rootdk variance: --pairs: \"1e6\" is not a whole number");
  EXPECT_EQ(refused({"variance", "--components", "cauchy"}),
            "rootdk variance: --components: \"cauchy\", but normal, uniform, rademacher or student_t5 is wanted");
  EXPECT_EQ(refused({"variance", "--seed", "-1"}),
            "rootdk variance: --seed: \"-1\" is not a whole number of at least 0");
  EXPECT_EQ(refused({"variance", "--threads", "-1"}),
            "rootdk variance: --threads: -1, but a number from 0 to 1024 is wanted");
  EXPECT_TRUE(refused({"phase", "--rules", "sqrt_dk,nope"})
                  .starts_with("rootdk phase: --rules: scale: \"nope\" is not known; known are none, sqrt_dk"));
  EXPECT_EQ(rootdk({"explain", "--q", "1,2", "--k", "1,2", "--dk", "2"}).status, 0);
  EXPECT_EQ(refused({"plan", "--link", "0GB/s"}), "rootdk plan: --link: 0, but more than 0 is wanted");
  EXPECT_EQ(refused({"plan", "--link", "fast"}),
            "rootdk plan: --link: \"fast\", but an amount like 400GB/s or 400Gb/s is wanted");
  EXPECT_EQ(refused({"plan", "--link", "-4GB/s"}),
            "rootdk plan: --link: \"-4GB/s\", but an amount like 400GB/s or 400Gb/s is wanted");
  EXPECT_EQ(refused({"plan", "--tokens", "1.5"}),
            "rootdk plan: --tokens: 1.5, but a whole number from 1 to 536870912 is wanted");
  EXPECT_EQ(refused({"plan", "--kv-heads", "5"}), "rootdk plan: --kv-heads: 5, which does not divide the 32 heads");
  EXPECT_EQ(refused({"plan", "--ranks", "5000"}),
            "rootdk plan: --ranks: 5000, but a whole number from 1 to 4096 is wanted");
  EXPECT_EQ(refused({"plan", "--layout", "zigzg"}),
            "rootdk plan: --layout: \"zigzg\", but auto, even or zigzag is wanted; did you mean zigzag?");
  EXPECT_EQ(refused({"attend", "q.npy"}), "rootdk attend: k is required");
  EXPECT_EQ(refused({"train", "--task", "sums"}), "rootdk train: --task: \"sums\", but recall or text is wanted");
  EXPECT_EQ(refused({"train", "--file", "a.txt"}),
            "rootdk train: --file: given, but --task is recall, which makes its own sequences");
  EXPECT_EQ(refused({"train", "--resume"}),
            "rootdk train: --resume: which runs? --out DIR names the folder of their checkpoints");
  EXPECT_EQ(refused({"train", "--steps", "-1"}),
            "rootdk train: --steps: -1, but at least 1 is wanted (0 is the default)");
  EXPECT_EQ(refused({"train", "--dk", "3"}), "rootdk train: --dk: 3, but an even number of at least 2 is wanted");
  EXPECT_EQ(refused({"train", "--dk", "1000000"}), "rootdk train: --dk: 1000000, but 1 to 65536 is wanted");
  EXPECT_EQ(refused({"train", "--batch", "2147483647"}),
            "rootdk train: --batch: 2147483647, but 1 to 1048576 is wanted");
  EXPECT_EQ(refused({"train", "--seeds", "1001"}), "rootdk train: --seeds: 1001, but 1 to 1000 is wanted");
  EXPECT_NE(refused({"train", "--lr", "0.1,0.01"}), "");
  EXPECT_NE(refused({"train", "--task", "text", "--file", "/no/such/file"}).find("/no/such/file"), std::string::npos);
}

// What was probably meant is said; nothing is, where nothing is close.
TEST(CommandLine, AsksWhatWasMeant) {
  EXPECT_EQ(refused({"audt"}), "rootdk: unknown verb: audt; did you mean audit?");
  EXPECT_EQ(refused({"aduit", "model/"}), "rootdk: unknown verb: aduit; did you mean audit?");
  EXPECT_EQ(refused({"Doctor"}), "rootdk: unknown verb: Doctor; did you mean doctor?");
  EXPECT_EQ(refused({"var"}), "rootdk: unknown verb: var; did you mean variance?");
  EXPECT_EQ(refused({"help"}), "rootdk: unknown verb: help; did you mean --help?");
  EXPECT_EQ(refused({"--versoin"}), "rootdk: unknown option: --versoin; did you mean --version?");
  EXPECT_EQ(refused({"phase", "--sed", "3"}), "rootdk phase: unknown option: --sed; did you mean --seed?");
  EXPECT_EQ(refused({"phase", "--sed=3"}), "rootdk phase: unknown option: --sed; did you mean --seed?");
  EXPECT_EQ(refused({"audit", "--fail_on", "frozen"}),
            "rootdk audit: unknown option: --fail_on; did you mean --fail-on?");
  EXPECT_EQ(refused({"audit", "--color", "never"}), "rootdk audit: unknown option: --color; did you mean --colour?");
  EXPECT_TRUE(refused({"phase", "--rules", "sqrt_d"}).ends_with("llama4; did you mean sqrt_dk?"));
  EXPECT_EQ(refused({"train", "--task", "recal"}),
            "rootdk train: --task: \"recal\", but recall or text is wanted; did you mean recall?");
  EXPECT_EQ(refused({"variance", "--components", "normal,unifrom"}),
            "rootdk variance: --components: \"unifrom\", but normal, uniform, rademacher or student_t5 is wanted; did "
            "you mean "
            "uniform?");
  const Arrays arrays;
  EXPECT_EQ(refused(arrays.attend({"--stats", "ful"})),
            "rootdk attend: --stats: \"ful\", but none, basic or full is wanted; did you mean full?");
  EXPECT_EQ(refused(arrays.attend({"--diagonal", "topleft"})),
            "rootdk attend: --diagonal: \"topleft\", but bottom-right or top-left is wanted; did you mean top-left?");
  EXPECT_TRUE(refused({"whatif", arrays["q.npy"], arrays["k.npy"], "--rules", "mesured"})
                  .ends_with("qk_norm, cosine(c), soft_cap(c), temperature; did you mean measured?"));
}

// What is said again steers no terminal.
TEST(CommandLine, WordsOfOthersAreShownAsTheyAre) {
  for (const Words& words :
       {Words{"a\x1b[2J\u202e"}, Words{"rules", "a\x1b[2J\u202e"}, Words{"rules", "--a\x1b[2J\u202e"},
        Words{"explain", "--dk", "a\x1b[2J\u202e"}, Words{"train", "--task", "a\x1b[2J\u202e"}}) {
    const std::string line = refused(words);
    EXPECT_NE(line.find("a\\x1b[2J\\u202e"), line.npos) << line;
    EXPECT_EQ(line.find('\x1b'), line.npos) << line;
  }
}

TEST(CommandLine, AFullDiskIsOneLine) {
  const std::string quoted = std::string("'") + ROOTDK_COMMAND + "' ";
  for (const char* words :
       {"--help", "explain --scores 1,2 --dk 4", "explain --scores 1,2 --dk 4 --json", "rules", "tour --quick"})
    EXPECT_NE(
        refusal(run({"sh", "-c", quoted + words + " > /dev/full"})).find("standard output: No space left on device"),
        std::string::npos)
        << words;
}

// Arrays -------------------------------------------------------------------------------------------------------------

TEST(CommandLine, AttendsToTheUsersArrays) {
  const Arrays arrays;
  const Finished done = rootdk(arrays.attend({"--causal", "--json", "--out", arrays["o.npy"]}));
  ASSERT_EQ(done.status, 0) << done.err;
  EXPECT_EQ(Json::parse(done.out)["heads"].size(), 2u);
  const std::string file = read_file(arrays.folder / "o.npy");
  EXPECT_NE(file.find("'shape': (2, 3, 6)"), file.npos);
  ASSERT_EQ(file.size() % 64, (2 * 3 * 6 * 4) % 64u);
  std::vector<float> o(36);
  std::memcpy(o.data(), file.data() + file.size() - 36 * sizeof(float), 36 * sizeof(float));
  // By the definition, in double; the last query stands on the last key. Sums of four products and five weights in f32:
  // 1e-5 is ten times what they can lose.
  for (std::size_t h = 0; h < 2; ++h)
    for (std::size_t i = 0; i < 3; ++i) {
      double sum = 0, out[6] = {};
      for (std::size_t j = 0; j <= i + 2; ++j) {
        double s = 0;
        for (std::size_t d = 0; d < 4; ++d)
          s += static_cast<double>(arrays.q[(h * 3 + i) * 4 + d]) * static_cast<double>(arrays.k[(h * 5 + j) * 4 + d]) /
               2;
        sum += std::exp(s);
        for (std::size_t d = 0; d < 6; ++d) out[d] += std::exp(s) * static_cast<double>(arrays.v[(h * 5 + j) * 6 + d]);
      }
      for (std::size_t d = 0; d < 6; ++d) EXPECT_NEAR(static_cast<double>(o[(h * 3 + i) * 6 + d]), out[d] / sum, 1e-5);
    }
  // What it wrote it can read.
  EXPECT_EQ(rootdk({"whatif", arrays["o.npy"], arrays["o.npy"]}).status, 0);
}

TEST(CommandLine, WhatifTakesArraysOfTwoToFourAxes) {
  const Arrays arrays;
  EXPECT_EQ(rootdk({"whatif", arrays["q.npy"], arrays["k.npy"], arrays["v.npy"], "--causal"}).status, 0);
  std::vector<double> wide(20);
  for (std::size_t i = 0; i < 20; ++i) wide[i] = static_cast<double>(i % 7);
  write_file(arrays.folder / "two.npy", npy(header("<f8", "(5, 4)"), bytes_of(wide)));
  write_file(arrays.folder / "four.npy", npy(header("<f8", "(1, 1, 5, 4)"), bytes_of(wide)));
  const Finished two = rootdk({"whatif", arrays["two.npy"], arrays["two.npy"], "--json"}),
                 four = rootdk({"whatif", arrays["four.npy"], arrays["two.npy"], "--json"});
  EXPECT_EQ(two.status, 0) << two.err;
  EXPECT_EQ(two.out, four.out);
  write_file(arrays.folder / "row.npy", npy(header("<f8", "(3,)"), bytes_of(std::vector<double>{14, 10, 12})));
  EXPECT_EQ(rootdk({"explain", "--scores", arrays["row.npy"], "--dk", "64"}).out,
            rootdk({"explain", "--scores", "14,10,12", "--dk", "64"}).out);
  EXPECT_EQ(refused({"whatif", arrays["row.npy"], arrays["row.npy"]}),
            "rootdk whatif: " + arrays["row.npy"] + ": 1 axis, but 2 to 4 are wanted: [[[batch,] heads,] length, dim]");
}

TEST(CommandLine, WhatIsSaidOfArraysFitsTheTerminal) {
  const Arrays arrays;
  for (const Words& words : {arrays.attend(), Words{"whatif", arrays["q.npy"], arrays["k.npy"], arrays["v.npy"]}}) {
    Words all = {"env", "COLUMNS=40", ROOTDK_COMMAND};
    all.insert(all.end(), words.begin(), words.end());
    const Finished done = run(all);
    EXPECT_EQ(done.status, 0) << done.err;
    std::istringstream lines(done.out);
    for (std::string line; std::getline(lines, line);)
      EXPECT_LE(std::count_if(line.begin(), line.end(), [](char c) { return (c & 0xC0) != 0x80; }), 40) << line;
  }
}

// Whole numbers, halves and other orders of bytes and axes are the same numbers.
TEST(CommandLine, ReadsWhatNumPyWrites) {
  const TemporaryDirectory folder;
  const auto path = [&](const std::string& name) { return (folder / name).string(); };
  // [[1, 2], [−3, 4]]
  write_file(folder / "f4.npy", npy(header("<f4", "(2, 2)"), bytes_of(std::vector<float>{1, 2, -3, 4})));
  write_file(folder / "i4.npy", npy(header("<i4", "(2, 2)"), bytes_of(std::vector<std::int32_t>{1, 2, -3, 4})));
  write_file(folder / "f2.npy",
             npy(header("<f2", "(2, 2)"), bytes_of(std::vector<std::uint16_t>{0x3c00, 0x4000, 0xc200, 0x4400})));
  write_file(folder / "big.npy",
             npy(header(">f4", "(2, 2)"), std::string("\x3f\x80\0\0\x40\0\0\0\xc0\x40\0\0\x40\x80\0\0", 16)));
  write_file(folder / "fortran.npy", npy("{'descr': '<f4', 'fortran_order': True, 'shape': (2, 2), }",
                                         bytes_of(std::vector<float>{1, -3, 2, 4})));
  const std::string wanted = rootdk({"whatif", path("f4.npy"), path("f4.npy"), "--json"}).out;
  EXPECT_NE(wanted, "");
  for (const char* name : {"i4.npy", "f2.npy", "big.npy", "fortran.npy"})
    EXPECT_EQ(rootdk({"whatif", path(name), path(name), "--json"}).out, wanted) << name;
  EXPECT_EQ(Json::parse(rootdk({"attend", path("i4.npy"), path("f2.npy"), path("big.npy"), "--json"}).out)["dtype"],
            "f32");
}

// Each is refused with one line that names the file, and leaves no output behind.
TEST(CommandLine, MalformedArraysAreRefused) {
  const Arrays arrays;
  const std::string numbers = bytes_of(random(24, 1)), good = npy(header("<f4", "(2, 3, 4)"), numbers);
  const std::vector<std::pair<std::string, std::string>> bad = {
      {"empty", ""},
      {"text", "these are not numbers"},
      {"magic only", good.substr(0, 6)},
      {"cut in the header", good.substr(0, 40)},
      {"cut in the numbers", good.substr(0, good.size() - 1)},
      {"too long", good + "x"},
      {"version", std::string(good).replace(6, 1, "\x09")},
      {"complex", npy(header("<c8", "(2, 3, 2)"), numbers)},
      {"objects", npy(header("|O", "(2, 3, 4)"), numbers)},
      {"no shape", npy("{'descr': '<f4', 'fortran_order': False, }", numbers)},
      {"no dtype", npy("{'fortran_order': False, 'shape': (2, 3, 4), }", numbers)},
      {"negative", npy(header("<f4", "(-2, -3, 4)"), numbers)},
      {"words", npy(header("<f4", "(two, 3, 4)"), numbers)},
      {"open", npy("{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3, 4", numbers)},
      {"overflow", npy(header("<f4", "(4611686018427387904, 4611686018427387904, 4)"), numbers)},
      {"huge", npy(header("<f4", "(1000000, 1000000, 4)"), numbers)},
      {"two shapes",
       npy("{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3, 4), 'shape': (1, 3, 4), }", numbers)},
  };
  for (const auto& [name, bytes] : bad) {
    SCOPED_TRACE(name);
    write_file(arrays.folder / "bad.npy", bytes);
    const std::string line =
        refused({"attend", arrays["bad.npy"], arrays["k.npy"], arrays["v.npy"], "--out", arrays["o.npy"]});
    EXPECT_NE(line.find("bad.npy: "), line.npos) << line;
    EXPECT_FALSE(std::filesystem::exists(arrays.folder / "o.npy"));
  }
  EXPECT_EQ(refused({"attend", arrays["none.npy"], arrays["k.npy"], arrays["v.npy"]}),
            "rootdk attend: " + arrays["none.npy"] + ": cannot be opened: No such file or directory");
  EXPECT_NE(refused({"attend", arrays.folder.path().string(), arrays["k.npy"], arrays["v.npy"]}).find("is a folder"),
            std::string::npos);
  EXPECT_EQ(refused({"attend", arrays["q.npy"], arrays["v.npy"], arrays["v.npy"]}),
            "rootdk attend: k: dim_qk is 6, but q has 4");
}

// Files --------------------------------------------------------------------------------------------------------------

// A limit on file sizes is a full disk that any user can have: writing fails half-way.
TEST(CommandLine, FilesAreWholeOrAsTheyWere) {
  const Arrays arrays;
  const std::size_t files = arrays.folder.files();
  const auto on_a_small_disk = [&](const std::string& words) {
    return refusal(run({"sh", "-c", std::string("trap '' XFSZ; ulimit -f 1; exec '") + ROOTDK_COMMAND + "' " + words}));
  };
  std::vector<float> large = random(40'000, 4);
  write_file(arrays.folder / "v.npy", npy(header("<f4", "(2, 5, 4000)"), bytes_of(large)));
  const std::string attend =
      "attend " + arrays["q.npy"] + " " + arrays["k.npy"] + " " + arrays["v.npy"] + " --stats none --out ";
  EXPECT_NE(on_a_small_disk(attend + arrays["o.npy"]).find("o.npy: File too large"), std::string::npos);
  EXPECT_EQ(arrays.folder.files(), files) << "neither the file nor a part of it";
  write_file(arrays.folder / "o.npy", "what was there");
  EXPECT_NE(on_a_small_disk(attend + arrays["o.npy"] + " --force").find("o.npy: File too large"), std::string::npos);
  EXPECT_EQ(read_file(arrays.folder / "o.npy"), "what was there");
  EXPECT_EQ(arrays.folder.files(), files + 1);
  EXPECT_NE(on_a_small_disk("tour --quick --out " + arrays["tour"]).find("results.json: File too large"),
            std::string::npos);
  EXPECT_FALSE(std::filesystem::exists(arrays.folder / "tour"));
  EXPECT_NE(
      on_a_small_disk("train --rules sqrt_dk --dk 2 --steps 1 --batch 1 --seeds 1 --lr 0.01 --out " + arrays["train"])
          .find("File too large"),
      std::string::npos);
  EXPECT_FALSE(std::filesystem::exists(arrays.folder / "train"));
}

TEST(CommandLine, WritesThroughLinksAndToDevices) {
  const Arrays arrays;
  std::filesystem::create_symlink(arrays.folder / "real.npy", arrays.folder / "link.npy");
  write_file(arrays.folder / "real.npy", "old");
  EXPECT_EQ(rootdk(arrays.attend({"--out", arrays["link.npy"], "--force"})).status, 0);
  EXPECT_TRUE(std::filesystem::is_symlink(arrays.folder / "link.npy"));
  EXPECT_NE(read_file(arrays.folder / "real.npy"), "old");
  EXPECT_EQ(rootdk(arrays.attend({"--out", "/dev/null"})).status, 0);
  EXPECT_FALSE(std::filesystem::is_regular_file("/dev/null"));
  EXPECT_EQ(refused(arrays.attend({"--out", "/dev/full"})), "rootdk attend: /dev/full: No space left on device");
  EXPECT_FALSE(std::filesystem::is_regular_file("/dev/full"));
  EXPECT_NE(refused({"tour", "--quick", "--out", arrays["q.npy"]}).find("q.npy"), std::string::npos);
}

// By whatever name: the file itself, another spelling, a link, a hard link. --force does not help.
TEST(CommandLine, NothingThatIsReadIsWrittenOver) {
  const Arrays arrays;
  std::filesystem::create_symlink(arrays.folder / "v.npy", arrays.folder / "link.npy");
  std::filesystem::create_hard_link(arrays.folder / "k.npy", arrays.folder / "hard.npy");
  const std::string q = read_file(arrays.folder / "q.npy"), k = read_file(arrays.folder / "k.npy"),
                    v = read_file(arrays.folder / "v.npy");
  const std::string spelt = (arrays.folder.path() / "." / ".." / arrays.folder.path().filename() / "q.npy").string();
  for (const std::string& name : {arrays["q.npy"], spelt, arrays["link.npy"], arrays["hard.npy"]})
    for (const Words& more : {Words{"--out", name}, Words{"--out", name, "--force"}})
      EXPECT_EQ(refused(arrays.attend(more)),
                "rootdk attend: --out: " + name + " is read by this command, and would be written over");
  EXPECT_EQ(read_file(arrays.folder / "q.npy"), q);
  EXPECT_EQ(read_file(arrays.folder / "k.npy"), k);
  EXPECT_EQ(read_file(arrays.folder / "v.npy"), v);
}

// Two names of one file that is not there yet, one of them a link to it.
TEST(CommandLine, OneResultDoesNotReplaceAnother) {
  const Arrays arrays;
  std::filesystem::create_symlink("o.npy", arrays.folder / "link");
  std::filesystem::create_symlink("link", arrays.folder / "link2");
  for (const std::string& name : {arrays["o.npy"], arrays["./o.npy"], arrays["link"], arrays["link2"]})
    EXPECT_EQ(refused(arrays.attend({"--out", arrays["o.npy"], "--html", name})),
              "rootdk attend: --html: " + name + " is also where another result goes");
  const Finished here =
      run({"sh", "-c", "cd \"$1\" && exec \"$0\" attend q.npy k.npy v.npy --out o.npy --html \"$PWD/o.npy\"",
           ROOTDK_COMMAND, arrays.folder.path().string()});
  EXPECT_NE(here.err.find("is also where another result goes"), here.err.npos) << here.err;
  EXPECT_FALSE(std::filesystem::exists(arrays.folder / "o.npy"));
}

// An hour of computing is not to end in "No such file or directory": it is said before anything is read.
TEST(CommandLine, WhereNothingCanBeWrittenIsSaidAtOnce) {
  const Arrays arrays;
  const std::string missing = arrays["no"], folder = arrays.folder.path().string();
  std::filesystem::create_directory(arrays.folder / "closed");
  std::filesystem::permissions(arrays.folder / "closed",
                               std::filesystem::perms::owner_read | std::filesystem::perms::owner_exec);
  const auto attend = [&](const char* option, const std::string& name) {
    return refused({"attend", arrays["none"], arrays["none"], arrays["none"], option, name});
  };
  for (const char* option : {"--out", "--html"}) {
    const std::string says = "rootdk attend: " + std::string(option) + ": ";
    EXPECT_EQ(attend(option, missing + "/o"), says + missing + "/o: No such file or directory");
    EXPECT_EQ(attend(option, arrays["q.npy/o"]), says + arrays["q.npy/o"] + ": Not a directory");
    EXPECT_EQ(attend(option, folder), says + folder + ": Is a directory");
    EXPECT_EQ(attend(option, missing + "/"), says + missing + "/: No such file or directory");
    if (geteuid() != 0) {  // whom nothing is closed to
      EXPECT_EQ(attend(option, arrays["closed/o"]), says + arrays["closed/o"] + ": Permission denied");
    }
  }
}

TEST(CommandLine, WhatOthersWroteStaysUnlessForced) {
  const Arrays arrays;
  write_file(arrays.folder / "mine.txt", "years of work");
  EXPECT_EQ(refused(arrays.attend({"--out", arrays["mine.txt"]})),
            "rootdk attend: --out: " + arrays["mine.txt"] +
                " is there already, and is no page or JSON of rootdk's; --force writes over it");
  EXPECT_EQ(read_file(arrays.folder / "mine.txt"), "years of work");
  EXPECT_EQ(rootdk(arrays.attend({"--out", arrays["mine.txt"], "--force"})).status, 0);
  // Results of its own are replaced; a file of that name that is none is not.
  const Words tour = {"tour", "--quick", "--out", arrays["tour"]};
  std::filesystem::create_directory(arrays.folder / "tour");
  write_file(arrays.folder / "tour/results.json", "{\n\"format\": \"rootdk-results\"}");
  EXPECT_EQ(rootdk(tour).status, 0);
  EXPECT_NE(read_file(arrays.folder / "tour/report.html").find("<meta name=\"generator\" content=\"rootdk"),
            std::string::npos);
  write_file(arrays.folder / "tour/results.json", "{\"format\": \"another\"}");
  EXPECT_NE(refused(tour).find("results.json is there already"), std::string::npos);
  EXPECT_EQ(read_file(arrays.folder / "tour/results.json"), "{\"format\": \"another\"}");
  // Runs cost hours.
  const Words train = {"train", "--rules", "sqrt_dk", "--dk", "2",    "--steps", "1",           "--batch",
                       "1",     "--seeds", "1",       "--lr", "0.01", "--out",   arrays["runs"]};
  const auto with = [&](const char* option) {
    Words words = train;
    words.emplace_back(option);
    return words;
  };
  EXPECT_EQ(rootdk(train).status, 0);
  EXPECT_NE(refused(train).find("holds runs already (sqrt_dk-dk2-lr0.01-seed"), std::string::npos);
  EXPECT_EQ(rootdk(with("--resume")).status, 0);
  EXPECT_EQ(rootdk(with("--force")).status, 0);
  // A text to train on is no run, whatever its name.
  write_file(arrays.folder / "runs/sqrt_dk-dk2-lr0.01-seed1.safetensors", "a text, and another");
  Words text = with("--force");
  text.insert(text.end(), {"--task", "text", "--file", arrays["runs/sqrt_dk-dk2-lr0.01-seed1.safetensors"]});
  EXPECT_NE(refused(text).find("is read by this command"), std::string::npos);
}

// Interrupts ---------------------------------------------------------------------------------------------------------

TEST(CommandLine, AnInterruptedTourCanBeRead) {
  const TemporaryDirectory folder;
  const auto finished = [&] {
    const std::string text = read_if_there(folder / "results.json");
    return text.empty() ? 0 : Json::parse(text)["chapters"].size();  // whatever is there is whole at any time
  };
  Process tour(command({"tour", "--out", folder.path().string()}));
  ASSERT_TRUE(until([&] { return finished() >= 2; }));
  tour.interrupt();
  const Finished done = tour.wait();
  EXPECT_EQ(done.status, 130) << done.err;
  const Json results = Json::parse(read_file(folder / "results.json"));
  EXPECT_EQ(results["complete"], false);
  EXPECT_GE(results["chapters"].size(), 2u);
  EXPECT_EQ(results["chapters"][1]["complete"], true);
  const std::string page = read_file(folder / "report.html");
  EXPECT_EQ(folder.files(), page.empty() ? 1u : 2u);
  if (!page.empty()) {
    EXPECT_TRUE(page.ends_with("</html>\n"));
  }
  EXPECT_NE(done.out.find("as far as it got"), done.out.npos);
}

// Stopped, read, and taken up again to the same bits as if nothing had happened.
TEST(CommandLine, InterruptedTrainingGoesOn) {
  const TemporaryDirectory folder;
  const std::string out = folder.path().string();
  const Words words = {"train", "--rules", "sqrt_dk", "--dk",    "2", "--layers", "1",    "--steps",
                       "800",   "--batch", "1",       "--seeds", "1", "--lr",     "0.01", "--json"};
  const auto with = [&](const Words& more) {
    Words all = words;
    all.insert(all.end(), more.begin(), more.end());
    return all;
  };
  Process training(command(with({"--out", out})));
  ASSERT_TRUE(until([&] { return std::filesystem::exists(folder / "sqrt_dk-dk2-lr0.01-seed2.safetensors"); }));
  training.interrupt();
  const Finished stopped = training.wait();
  EXPECT_EQ(stopped.status, 130) << stopped.err;
  const Json kept = Json::parse(read_file(folder / "results.json"));
  EXPECT_EQ(kept["complete"], false);
  EXPECT_EQ(kept["chapters"][0]["data"], Json::parse(stopped.out));
  EXPECT_EQ(kept["chapters"][0]["data"]["rules"][0]["runs"][0]["outcome"], "stopped");
  const Finished resumed = rootdk(with({"--out", out, "--resume"}));
  EXPECT_EQ(resumed.status, 0) << resumed.err;
  EXPECT_EQ(resumed.out, rootdk(words).out);
  EXPECT_NE(refused({"train", "--rules", "sqrt_dk", "--dk", "2", "--layers", "1", "--steps", "801", "--batch", "1",
                     "--seeds", "1", "--lr", "0.01", "--out", out, "--resume"})
                .find("steps"),
            std::string::npos)
      << "a checkpoint of another run";
}

}  // namespace
}  // namespace rootdk::test
