// rootdk audit, from outside: what it prints and writes, what it refuses, and a checkpoint that rootdk train has just
// written.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "audit/models.h"
#include "rootdk/checkpoint/checkpoint.h"
#include "rootdk/checkpoint/npy.h"
#include "support/process.h"

namespace rootdk::audit {
namespace {

using Words = std::vector<std::string>;

test::Finished rootdk(Words words) {
  words.insert(words.begin(), {ROOTDK_COMMAND, "audit"});
  return test::run(words);
}

Json json_of(Words words) {
  words.push_back("--json");
  const test::Finished done = rootdk(words);
  EXPECT_EQ(done.status, 0) << done.err;
  EXPECT_EQ(done.err, "");
  return Json::parse(done.out);
}

struct Folder : test::TemporaryDirectory {
  explicit Folder(const Made& made) { write(made, path()); }
  std::string name(const std::string& file = "") const {
    return file.empty() ? path().string() : (path() / file).string();
  }
};

Made llama(std::uint64_t seed = 1) {
  Rng rng(seed);
  return make_llama(rng);
}

TEST(Audit, JsonHasEveryHead) {
  const Folder folder(llama());
  const Json json = json_of({folder.name(), "--contexts", "32,64"});
  EXPECT_EQ(json["family"], "llama");
  EXPECT_EQ(json["scale_rule"], "sqrt_dk");
  EXPECT_EQ(json["experiment"], "audit");
  EXPECT_TRUE(json["conclusion"].get<std::string>().find(". If inputs were isotropic, ") != std::string::npos)
      << json["conclusion"];
  EXPECT_EQ(json["contexts"], Json({32, 64}));
  EXPECT_EQ(json["judged_at"], 64);
  ASSERT_EQ(json["layers"].size(), 2u);
  for (std::size_t layer = 0; layer < 2; ++layer) {
    const Json& one = json["layers"][layer];
    EXPECT_EQ(one["layer"], layer);
    ASSERT_EQ(one["heads"].size(), 4u);
    for (std::size_t h = 0; h < 4; ++h) {
      const Json& head = one["heads"][h];
      EXPECT_EQ(head["head"], h);
      EXPECT_EQ(head["kv_head"], h / 2);
      EXPECT_EQ(head["d_k"], 8);
      const double variance = head["variance"], sigma = head["sigma"], divisor = head["unit_divisor"];
      EXPECT_GT(variance, 0);
      EXPECT_NEAR(divisor * divisor, variance, 1e-12 * variance);
      EXPECT_NEAR(sigma, divisor / std::sqrt(8), 1e-12 * sigma);
      EXPECT_NEAR(head["ratio"].get<double>(), divisor / std::sqrt(8), 1e-12 * sigma);
      EXPECT_LT(head["entropy"]["32"].get<double>(), std::log(32));
      EXPECT_LT(head["entropy"]["32"].get<double>(), head["entropy"]["64"].get<double>());
      EXPECT_TRUE(head["verdict"].is_string());
      EXPECT_EQ(head["ground"], "weights");
      EXPECT_FALSE(head["fix"].get<std::string>().empty());
      EXPECT_EQ(head["spectrum"].size(), 8u);
      EXPECT_EQ(head["curve"][0]["distance"], 0);
      EXPECT_EQ(head["verdicts"]["64"], head["verdict"]);
    }
  }
  EXPECT_EQ(json, json_of({folder.name(), "--contexts", "32,64", "--threads", "1"}));
}

TEST(Audit, TextHasTheMapAndTheWorst) {
  const Folder folder(llama());
  const test::Finished plain = rootdk({folder.name(), "--worst", "3"}),
                       colour = rootdk({folder.name(), "--colour", "always"});
  EXPECT_EQ(plain.status, 0) << plain.err;
  EXPECT_EQ(plain.out.find('\x1b'), plain.out.npos);
  EXPECT_NE(colour.out.find("\x1b[48;5;"), colour.out.npos);
  EXPECT_NE(plain.out.find("heads 0 … 3"), plain.out.npos);
  EXPECT_NE(plain.out.find("The 3 heads furthest from right"), plain.out.npos);
  EXPECT_NE(plain.out.find("isotropic"), plain.out.npos);
}

// From 40 columns, in blocks; in a pipe a head is one line.
TEST(Audit, TextFitsTheTerminal) {
  const Folder folder(llama());
  for (const std::size_t columns : {40u, 60u, 80u}) {
    const test::Finished done =
        test::run({"env", "COLUMNS=" + std::to_string(columns), ROOTDK_COMMAND, "audit", folder.name()});
    EXPECT_EQ(done.status, 0) << done.err;
    std::istringstream lines(done.out);
    for (std::string line; std::getline(lines, line);)
      EXPECT_LE(std::count_if(line.begin(), line.end(), [](char c) { return (c & 0xC0) != 0x80; }), columns) << line;
  }
  const std::string piped = test::run({"env", "--unset=COLUMNS", ROOTDK_COMMAND, "audit", folder.name()}).out;
  const std::string titles = piped.substr(piped.find("\n  head ") + 1);
  EXPECT_NE(titles.substr(0, titles.find('\n')).find("verdict"), std::string::npos) << titles;
}

TEST(Audit, CsvSaysWhatJsonSays) {
  const Folder folder(llama());
  const Json json = json_of({folder.name(), "--csv", folder.name("heads.csv")});
  std::istringstream csv(test::read_file(folder / "heads.csv"));
  std::string line;
  const auto cells = [&] {
    Words out;
    std::getline(csv, line);
    std::istringstream text(line);
    for (std::string cell; std::getline(text, cell, ',');) out.push_back(cell);
    return out;
  };
  const Words titles = cells();
  for (const Json& layer : json["layers"])
    for (const Json& head : layer["heads"]) {
      const Words row = cells();
      ASSERT_EQ(row.size(), titles.size());
      for (std::size_t i = 0; i < titles.size(); ++i) {
        if (titles[i] == "layer") {
          EXPECT_EQ(row[i], layer["layer"].dump());
        } else if (titles[i] == "verdict" || titles[i] == "ground") {
          EXPECT_EQ(row[i], head[titles[i]]);
        } else if (head.contains(titles[i]) && head[titles[i]].is_number()) {
          EXPECT_EQ(std::stod(row[i]), head[titles[i]].get<double>()) << titles[i];
        } else if (titles[i] == "entropy_64") {
          EXPECT_EQ(std::stod(row[i]), head["entropy"]["64"].get<double>());
        }
      }
    }
  EXPECT_FALSE(std::getline(csv, line));
}

/// Layer 1's head 2 is frozen for any input like these weights' own.
Made with_a_frozen_head() {
  Made made = llama();
  for (auto& [name, m] : made.tensors)
    if (name == "model.layers.1.self_attn.q_proj.weight")
      for (std::int64_t i = 0; i < 8 * m.width; ++i) m.values[static_cast<std::size_t>(2 * 8 * m.width + i)] *= 300;
  return made;
}

// What stands below "at N keys" is of N keys, whether or not N is among the usual ones.
TEST(Audit, IsForTheKeysThatWereAskedFor) {
  const Folder folder(llama());
  for (const std::int64_t keys : {48, 64, 100}) {
    const std::string at = std::to_string(keys);
    const Json json = json_of({folder.name(), "--at", at});
    EXPECT_EQ(json["judged_at"], keys);
    const Json& head = json["layers"][0]["heads"][0];
    EXPECT_EQ(head["keys"][at], keys);
    EXPECT_NEAR(head["sigma_over_critical"][at].get<double>(),
                head["sigma"].get<double>() / std::sqrt(2 * std::log(keys)), 1e-6);
    EXPECT_NE(head["words"].get<std::string>().find("where " + at + " keys freeze"), std::string::npos)
        << head["words"];
    char most[16];
    std::snprintf(most, sizeof most, "  %.2f  ", std::log(keys));
    EXPECT_NE(rootdk({folder.name(), "--at", at}).out.find(most), std::string::npos) << "an entropy out of" << most;
  }
  EXPECT_EQ(rootdk({folder.name(), "--at", "9223372036854775807"}).err,
            "rootdk audit: at: 9223372036854775807, but at most 2^40 is wanted\n");
}

TEST(Audit, SaysWhichContextItAssumed) {
  Made made = llama();
  EXPECT_EQ(json_of({Folder(made).name()})["notes"], Json::array());
  made.config.erase("max_position_embeddings");
  const Folder folder(made);
  EXPECT_EQ(json_of({folder.name()})["notes"],
            Json::array({"no configuration says how long its context is: 4096 was assumed"}));
  EXPECT_NE(rootdk({folder.name()}).out.find("4096 was assumed"), std::string::npos);
  EXPECT_EQ(json_of({folder.name(), "--context", "64"})["notes"], Json::array());
}

TEST(Audit, FailsOnWhatItIsTold) {
  const Folder good(llama()), bad(with_a_frozen_head());
  const test::Finished passed = rootdk({good.name(), "--fail-on", "frozen,not_finite"}),
                       failed = rootdk({bad.name(), "--fail-on", "frozen,not_finite", "--json"});
  EXPECT_EQ(passed.status, 0) << passed.out;
  EXPECT_EQ(passed.err, "");
  EXPECT_EQ(failed.status, 3);
  EXPECT_EQ(failed.err, "rootdk audit: --fail-on: frozen (1 head, from the weights alone): 1.2\n");
  EXPECT_EQ(Json::parse(failed.out)["layers"][1]["heads"][2]["verdict"], "frozen") << "the result comes all the same";
  EXPECT_EQ(rootdk({bad.name(), "--fail-on", "exploding"}).status, 0);
}

TEST(Audit, TakesAScaleByItsRule) {
  const Folder folder(llama());
  const auto scale = [&](const std::string& text) {
    return json_of({folder.name(), "--scale", text})["layers"][0]["scale"].get<double>();
  };
  EXPECT_DOUBLE_EQ(scale("sqrt_dk"), 1 / std::sqrt(8));
  EXPECT_DOUBLE_EQ(scale("dk(8)"), 1);
  EXPECT_DOUBLE_EQ(scale("none"), 1);
  EXPECT_DOUBLE_EQ(scale("0.25"), 0.25);
  EXPECT_DOUBLE_EQ(scale("-2"), -2);
  const Json json = json_of({folder.name(), "--scale", "sqrt_dk*ssmax(0.43)"});
  EXPECT_EQ(json["scale_rule"], "sqrt_dk*ssmax(0.43)");
  EXPECT_NE(json["notes"].dump().find("depends on the query"), std::string::npos);
}

TEST(Audit, SaysWhatIsNotFinite) {
  Made made = llama();
  for (auto& [name, m] : made.tensors) {
    if (name == "model.layers.0.self_attn.q_proj.weight") m.at(8 + 3, 5) = NAN;  // head 1
    if (name == "model.layers.1.self_attn.q_proj.weight")
      for (std::int64_t i = 0; i < 8 * m.width; ++i) m.values[static_cast<std::size_t>(i)] = 1e30;  // head 0
  }
  const Folder folder(made);
  const Json layers = json_of({folder.name()})["layers"];
  const Json &nan = layers[0]["heads"][1], &huge = layers[1]["heads"][0];
  EXPECT_EQ(nan["words"], "Not finite: NaN or Inf among its weights.");
  EXPECT_EQ(nan["not_finite"], 1);
  EXPECT_EQ(huge["words"], "Not finite: its weights are finite, but products of them overflow f32.");
  EXPECT_EQ(huge["not_finite"], 0);
  EXPECT_EQ(huge["overflows"], true);
  EXPECT_EQ(huge["verdict"], "not_finite");
  // A factor changes nothing about NaN.
  const std::vector<float> inputs(4 * 24, 1);
  const std::int64_t shape[] = {4, 24};
  checkpoint::write_npy(folder / "inputs.npy", shape, std::span<const float>(inputs));
  EXPECT_EQ(rootdk({folder.name(), "--apply-qk-clip", "10", "--inputs", folder.name("inputs.npy"), "--dry-run"}).err,
            "rootdk audit: QK-clip: head 1 of layer 0 is not finite, and no factor mends that; an audit without "
            "QK-clip says more\n");
}

// Names of files are text of somebody else's.
TEST(Audit, NamesSteerNoTerminal) {
  const test::TemporaryDirectory outer;
  const std::string hostile = (outer.path() / "m\u202e\x1b[2Jx").string();
  std::filesystem::create_directory(hostile);
  write(llama(), hostile);
  for (const test::Finished& done : {rootdk({hostile}), rootdk({hostile, "--json"}), rootdk({hostile + "/none"}),
                                     rootdk({hostile, "--csv", hostile + "/config.json"})})
    for (const std::string* text : {&done.out, &done.err}) {
      EXPECT_EQ(text->find("\u202e"), text->npos) << *text;
      EXPECT_EQ(text->find('\x1b'), text->npos) << *text;
    }
  EXPECT_NE(rootdk({hostile}).out.find("m\\u202e\\x1b[2Jx, a llama model"), std::string::npos);
}

TEST(Audit, SaysHowToGetWhatItCanRead) {
  const Folder folder(llama());
  std::filesystem::remove(folder / "model.safetensors");
  test::write_file(folder / "pytorch_model.bin", "PK\x03\x04");
  for (const std::string& path : {folder.name(), folder.name("pytorch_model.bin")}) {
    const test::Finished done = rootdk({path});
    EXPECT_EQ(done.status, 2);
    for (const char* part : {"pytorch_model.bin", "pickle", "save_file", "model.safetensors"})
      EXPECT_NE(done.err.find(part), done.err.npos) << done.err;
    EXPECT_EQ(std::count(done.err.begin(), done.err.end(), '\n'), 1) << done.err;
  }
  // A line to be copied has nothing in it that somebody else could make a shell run.
  for (const char* hostile : {"$(reboot)", "`reboot`", "a\" reboot \"", "a', reboot, '", "a\\", "!!"}) {
    const std::filesystem::path inside = folder / hostile;
    std::filesystem::create_directory(inside);
    test::write_file(inside / "pytorch_model.bin", "PK\x03\x04");
    const std::string line = rootdk({inside.string()}).err;
    EXPECT_NE(line.find("torch.load('FILE', weights_only=True)"), line.npos) << line;
  }
  const test::Finished hub = rootdk({"no-such-org/no-such-model"});
  EXPECT_EQ(hub.status, 2);
  for (const char* part :
       {"no such file", "nothing is downloaded", "hf download no-such-org/no-such-model --local-dir no-such-model"})
    EXPECT_NE(hub.err.find(part), hub.err.npos) << hub.err;
  for (const std::string& path : {folder.name("none.safetensors"), std::string("./a/b"), std::string("a/b/c"),
                                  std::string("a/b.gguf"), std::string("nothing")})
    EXPECT_EQ(rootdk({path}).err.find("hf download"), std::string::npos) << path;
}

TEST(Audit, RefusesInOneLine) {
  const Folder folder(llama());
  test::write_file(folder / "notes.txt", "hello");
  test::write_file(folder / "family.json", "{");
  const std::pair<Words, std::string> cases[] = {
      {{}, "which checkpoint? rootdk audit PATH"},
      {{folder.name("nothing.safetensors")}, "nothing.safetensors"},
      {{folder.name("notes.txt")}, "notes.txt"},
      {{folder.name(), "--heads", "0"}, "--heads: \"0\", but a whole number of at least 1 is wanted"},
      {{folder.name(), "--heads", "-3"}, "--heads: \"-3\""},
      {{folder.name(), "--heads", "3"}, "32 rows, but 3 heads of 8 would have 24"},
      {{folder.name(), "--norm", "batch"}, "--norm: \"batch\", but rms, layer or none is wanted"},
      {{folder.name(), "--family-file", folder.name("family.json")}, "family file: parse error"},
      {{folder.name(), "--family-file", folder.name("none.json")}, "none.json: No such file"},
      {{folder.name(), "--contexts", "1"}, "contexts: 1, but numbers from 2 to 2^40 are wanted"},
      {{folder.name(), "--colour", "red"}, "--colour: \"red\", but auto, always or never is wanted"},
      {{folder.name(), "--fail-on", "frosen"},
       "--fail-on: \"frosen\", but unknown, soft, outliers, sink, sharp, uniform, frozen, exploding or not_finite is "
       "wanted; did "
       "you mean frozen?"},
      {{folder.name(), "--norm", "layers"},
       "--norm: \"layers\", but rms, layer or none is wanted; did you mean layer?"},
      {{folder.name(), "--family", "lama"}, "; did you mean llama?"},
      {{folder.name(), "--scale", "sqrtdk"}, "; did you mean sqrt_dk?"},
      {{folder.name(), "--fail-on", "frozen,"}, "--fail-on: \"frozen,\" has an empty place"},
      {{folder.name(), "--scale", "sqrt"}, "--scale: scale: \"sqrt\""},
      {{folder.name(), "--scale", "dk,none"}, "--scale: \"dk,none\", but one rule or number is wanted"},
      {{folder.name(), "--scale", "0"}, "scale: 0, but a finite number other than 0 is wanted"},
      {{folder.name(), "--apply-qk-clip", "0", "--max-scores", folder.name("notes.txt"), "--dry-run", "--fail-on",
        "frozen"},
       "goes without --against, --csv, --html, --hidden-out and --fail-on"},
      {{folder.name(), "--out", "x"}, "--out: goes with --apply-qk-clip"},
      {{folder.name(), "--apply-qk-clip", "100"}, "give the scores that were seen"},
      {{folder.name(), "--apply-qk-clip", "100", "--max-scores", folder.name("notes.txt"), "--dry-run"},
       "max scores: parse error"},
      {{folder.name(), "--inputs", folder.name("nothing.npy")}, "nothing.npy"},
      {{folder.name(), "--unknown"}, "unknown option: --unknown; try rootdk audit --help"},
  };
  for (const auto& [words, wanted] : cases) {
    const test::Finished done = rootdk(words);
    EXPECT_EQ(done.status, 2) << wanted;
    EXPECT_EQ(done.out, "") << wanted;
    EXPECT_NE(done.err.find(wanted), done.err.npos) << done.err << "wanted: " << wanted;
    EXPECT_EQ(std::count(done.err.begin(), done.err.end(), '\n'), 1) << done.err;
  }
}

TEST(Audit, HelpHasExamplesAndFamiliesCanBeUsed) {
  const test::Finished help = rootdk({"--help"});
  EXPECT_EQ(help.status, 0);
  EXPECT_NE(help.out.find("Examples:"), help.out.npos);
  const test::Finished families = rootdk({"--families"});
  const Folder folder(llama());
  test::write_file(folder / "families.json", families.out);
  EXPECT_EQ(json_of({folder.name(), "--family-file", folder.name("families.json"), "--family", "llama"})["family"],
            "llama");
}

TEST(Audit, SaysWhatMovedSinceAnEarlierCheckpoint) {
  Made made = llama();
  const Folder before(made);
  for (auto& [name, m] : made.tensors)
    if (name == "model.layers.1.self_attn.q_proj.weight")
      for (std::int64_t i = 0; i < 8 * m.width; ++i)
        m.values[static_cast<std::size_t>(2 * 8 * m.width + i)] *= 8;  // head 2
  const Folder after(made);
  const Json drift = json_of({after.name(), "--against", before.name()})["drift"];
  ASSERT_EQ(drift.size(), 8u);
  EXPECT_EQ(drift[0]["layer"], 1);
  EXPECT_EQ(drift[0]["head"], 2);
  EXPECT_NEAR(drift[0]["growth"].get<double>(), 8, 1e-9);
  for (std::size_t i = 1; i < 8; ++i) EXPECT_EQ(drift[i]["growth"], 1);
  EXPECT_NE(rootdk({after.name(), "--against", before.name()}).out.find("What moved most"), std::string::npos);
}

TEST(Audit, ClipsACopy) {
  const Folder folder(llama());
  test::write_file(folder / "seen.json", "[[10, 400, 20, 30], [1, 2, 3, 4]]");
  const Words words = {folder.name(), "--apply-qk-clip", "100", "--max-scores", folder.name("seen.json")};
  Words dry = words, real = words;
  dry.push_back("--dry-run");
  const Json plan = json_of(dry);
  EXPECT_EQ(folder.files(), 3u);
  ASSERT_EQ(plan["heads"].size(), 1u);
  EXPECT_EQ(plan["heads"][0]["gamma"], 0.25);
  real.insert(real.end(), {"--out", folder.name("fixed.safetensors")});
  const Json done = json_of(real);
  EXPECT_EQ(done["heads"], plan["heads"]);
  const Json before = json_of({folder.name("model.safetensors")}), after = json_of({folder.name("fixed.safetensors")});
  for (std::size_t h = 0; h < 4; ++h)
    EXPECT_NEAR(after["layers"][0]["heads"][h]["sigma"].get<double>(),
                before["layers"][0]["heads"][h]["sigma"].get<double>() * (h == 1 ? 0.25 : 1), 1e-6);
  // Never in place.
  real.back() = folder.name("model.safetensors");
  const std::string original = test::read_file(folder / "model.safetensors");
  EXPECT_EQ(rootdk(real).status, 2);
  EXPECT_EQ(test::read_file(folder / "model.safetensors"), original);
}

// A slip of the finger must not cost a checkpoint.
TEST(Audit, NeverWritesOverWhatItReads) {
  const Folder folder(llama());
  const Folder earlier(llama(2));
  const std::string weights = folder.name("model.safetensors"), original = test::read_file(weights),
                    config = test::read_file(folder.name("config.json"));
  for (const char* option : {"--html", "--csv"})
    for (const auto& [read, written] : {std::pair{weights, weights},
                                        {folder.name(), weights},
                                        {folder.name(), folder.name("config.json")},
                                        {weights, earlier.name("model.safetensors")}}) {
      const test::Finished done = rootdk({read, option, written, "--against", earlier.name(), "--force"});
      EXPECT_EQ(done.status, 2) << option << written;
      EXPECT_NE(done.err.find("is read by this command"), done.err.npos) << done.err;
    }
  EXPECT_EQ(test::read_file(weights), original);
  EXPECT_EQ(test::read_file(folder.name("config.json")), config);
  const std::string twice = folder.name("out");
  EXPECT_NE(rootdk({weights, "--html", twice, "--csv", twice}).err.find("also where another result goes"),
            std::string::npos);
  // A page of its own is replaced; a table carries no mark.
  for (const auto& [option, again] : {std::pair{"--html", 0}, {"--csv", 2}}) {
    const std::string path = folder.name(option);
    EXPECT_EQ(rootdk({weights, option, path}).status, 0);
    EXPECT_EQ(rootdk({weights, option, path}).status, again) << option;
    EXPECT_EQ(rootdk({weights, option, path, "--force"}).status, 0);
  }
}

// What a checkpoint consists of is read, though only one of its files was named: the shards of an index, the
// configuration beside.
TEST(Audit, NeverWritesOverWhatLiesBeside) {
  const Folder folder(llama()), earlier(llama(2));
  Json index = {{"weight_map", Json::object()}};
  const auto opened = checkpoint::Checkpoint::open(folder.path());
  for (const checkpoint::TensorInfo& tensor : opened.tensors()) index["weight_map"][tensor.name] = "part.safetensors";
  std::filesystem::copy_file(folder.name("model.safetensors"), folder.name("part.safetensors"));
  const std::string whole = folder.name("model.safetensors"), parts = folder.name("parts.safetensors.index.json");
  test::write_file(parts, index.dump());
  for (const auto& [read, written] : {std::pair{whole, folder.name("config.json")},
                                      {parts, folder.name("config.json")},
                                      {parts, folder.name("part.safetensors")},
                                      {whole, earlier.name("config.json")}}) {
    const std::string before = test::read_file(written);
    const test::Finished done =
        rootdk({read, "--html", written, "--against", earlier.name("model.safetensors"), "--force"});
    EXPECT_EQ(done.err, "rootdk audit: --html: " + written + " is read by this command, and would be written over\n");
    EXPECT_EQ(test::read_file(written), before);
  }
}

/// A checkpoint that rootdk train has just written.
std::string trained_in(const std::string& folder, const std::string& steps = "2") {
  const test::Finished trained = test::run({ROOTDK_COMMAND, "train", "--rules", "dk(8)", "--dk", "16", "--lr", "0.001",
                                            "--seeds", "1", "--steps", steps, "--out", folder});
  EXPECT_EQ(trained.status, 0) << trained.err;
  std::string checkpoint;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder))
    if (entry.path().extension() == ".safetensors") checkpoint = entry.path().string();
  EXPECT_FALSE(checkpoint.empty());
  return checkpoint;
}

// Both are run on the same tokens, so that measured σ are compared.
TEST(Audit, RunsTheEarlierCheckpointOnTheSameTokens) {
  const Folder folder(llama());
  const std::string after = trained_in(folder.name("after"), "3"), before = trained_in(folder.name("before"), "2");
  const Json run = json_of({after, "--against", before, "--tokens", "random"}),
             once = json_of({before, "--tokens", "random"});
  ASSERT_FALSE(run["drift"].empty());
  for (const Json& d : run["drift"]) {
    const auto measured = [&](const Json& audit) {
      return audit["layers"][d["layer"].get<std::size_t>()]["heads"][d["head"].get<std::size_t>()]["measured"]["sigma"];
    };
    EXPECT_EQ(d["ground"], "measured");
    EXPECT_EQ(d["verdict_before_ground"], "measured");
    EXPECT_EQ(d["sigma_after"], measured(run));
    EXPECT_EQ(d["sigma_before"], measured(once));
  }
}

// A link stays a link, a pipe a pipe: no file takes their place, whichever result is written.
TEST(Audit, WritesThroughLinksAndToPipes) {
  const Folder folder(llama());
  test::write_file(folder / "seen.json", "[[10, 400, 20, 30], [1, 2, 3, 4]]");
  const std::string model = folder.name("model.safetensors"),
                    trained = trained_in(folder.name("runs"));  // which can be run
  for (const Words& words : {Words{trained, "--tokens", "random:1x8", "--hidden-out"},
                             {model, "--apply-qk-clip", "100", "--max-scores", folder.name("seen.json"), "--out"},
                             {model, "--html"},
                             {model, "--csv"}}) {
    const auto command = [&](const std::string& name) {
      Words all = {ROOTDK_COMMAND, "audit"};
      all.insert(all.end(), words.begin(), words.end());
      all.push_back(name);
      return all;
    };
    const std::string what = words.back(), link = folder.name(what + "-link"), target = folder.name(what + "-target"),
                      pipe = folder.name(what + "-pipe");
    std::filesystem::create_symlink(target, link);
    EXPECT_EQ(test::run(command(link)).status, 0);
    EXPECT_TRUE(std::filesystem::is_symlink(link)) << what;
    ASSERT_TRUE(std::filesystem::is_regular_file(target)) << what;
    ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
    Words read = command(pipe);
    read.insert(read.begin(),
                {"sh", "-c", "timeout 20 cat \"$0\" > \"$0-came\" & \"$@\"; status=$?; wait; exit $status", pipe});
    EXPECT_EQ(test::run(read).status, 0);
    EXPECT_TRUE(std::filesystem::is_fifo(pipe)) << what;
    EXPECT_EQ(test::read_file(pipe + "-came").size(), test::read_file(target).size()) << what;
  }
}

TEST(Audit, ReadsWhatTrainingWrites) {
  const test::TemporaryDirectory folder;
  const std::string checkpoint = trained_in(folder.path().string());
  const Json json = json_of({checkpoint});
  EXPECT_EQ(json["family"], "llama");
  EXPECT_EQ(json["scale_rule"], "dk(8)");
  for (const Json& layer : json["layers"])
    for (const Json& head : layer["heads"]) {
      EXPECT_EQ(head["d_k"], 16);
      EXPECT_NEAR(head["sigma"].get<double>(), head["unit_divisor"].get<double>() / 2, 1e-9);
    }
}

}  // namespace
}  // namespace rootdk::audit
