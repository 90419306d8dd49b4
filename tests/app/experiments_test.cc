// The command's verbs, small: their JSON against theory, against the worked numbers, and against itself at other thread
// counts.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "support/process.h"

namespace rootdk::test {
namespace {

using Json = nlohmann::json;
using Words = std::vector<std::string>;

Finished rootdk(Words words) {
  words.insert(words.begin(), ROOTDK_COMMAND);
  return run(words);
}

/// Runs it with --json, which must be all it says.
Json json_of(Words words) {
  words.push_back("--json");
  const Finished done = rootdk(words);
  EXPECT_EQ(done.status, 0) << done.err;
  EXPECT_EQ(done.err, "");
  for (const char* token : {"NaN", "nan", "Infinity", "inf,", "inf\n"})
    EXPECT_EQ(done.out.find(token), done.out.npos) << token;
  return Json::parse(done.out);
}

std::string printed(const Json& x, int decimals) {
  char text[64];
  std::snprintf(text, sizeof text, "%.*f", decimals, x.get<double>());
  return text;
}

Words printed_all(const Json& values, int decimals) {
  Words out;
  for (const Json& x : values) out.push_back(printed(x, decimals));
  return out;
}

// Twice the width of a 95 % interval from its middle is 7.8 standard errors for known moments; from eight batches, 9.4
// of a Student t with 7 degrees, passed once in 30 000 times.
void expect_agrees(const Json& estimate, double expected, const std::string& what) {
  const double low = estimate["ci95"][0], high = estimate["ci95"][1];
  EXPECT_NEAR(estimate["value"].get<double>(), expected, 2 * (high - low)) << what;
}

/// The JSON inside a page.
std::string embedded(const std::string& page) {
  const std::string open = "<script type=\"application/json\" id=\"results\">";
  const std::size_t from = page.find(open) + open.size();
  return page.substr(from, page.find("</script>", from) - from);
}

// Worked numbers -----------------------------------------------------------------------------------------------------

TEST(Command, ExplainsThreeScores) {
  const Json json = json_of({"explain", "--scores", "14,10,12", "--dk", "64"});
  EXPECT_EQ(json["dk"], 64);
  const Json &none = json["rules"][0], &root = json["rules"][1], &by_dk = json["rules"][2];
  EXPECT_EQ(none["rule"], "none");
  EXPECT_EQ(none["divisor"], 1);
  EXPECT_EQ(printed_all(none["exp"], 0), (Words{"1202604", "22026", "162755"}));
  EXPECT_EQ(printed(none["exp_sum"], 0), "1387386");
  EXPECT_EQ(printed_all(none["softmax"], 3), (Words{"0.867", "0.016", "0.117"}));
  EXPECT_EQ(root["rule"], "sqrt_dk");
  EXPECT_EQ(root["divisor"], 8);
  EXPECT_EQ(root["scores"], Json({1.75, 1.25, 1.5}));
  EXPECT_EQ(printed(root["exp_sum"], 3), "13.727");
  EXPECT_EQ(printed_all(root["softmax"], 3), (Words{"0.419", "0.254", "0.326"}));
  EXPECT_EQ(by_dk["rule"], "dk");
  EXPECT_EQ(by_dk["divisor"], 64);
  for (const Json& rule : json["rules"]) {
    double entropy = 0, p_max = 0, p2 = 0, p3 = 0;
    for (const Json& x : rule["softmax"]) {
      const double p = x;
      entropy -= p * std::log(p), p_max = std::max(p_max, p), p2 += p * p, p3 += p * p * p;
    }
    EXPECT_NEAR(rule["entropy"].get<double>(), entropy, 1e-14);
    EXPECT_NEAR(rule["effective_keys"].get<double>(), std::exp(entropy), 1e-13);
    EXPECT_EQ(rule["p_max"], p_max);
    EXPECT_NEAR(rule["trace_j"].get<double>(), 1 - p2, 1e-14);
    EXPECT_NEAR(rule["frobenius_j"].get<double>(), p2 - 2 * p3 + p2 * p2, 1e-14);
  }
}

TEST(Command, ExplainsTheOtherWorkedNumbers) {
  const Json large = json_of({"explain", "--scores", "50,10,5", "--dk", "100"})["rules"];
  EXPECT_GT(large[0]["p_max"].get<double>(), 0.999);
  EXPECT_NEAR(large[0]["exp"][0].get<double>() / 5.1847e21, 1, 1e-5);
  EXPECT_EQ(printed(large[0]["softmax"][1].get<double>() * 1e18, 1), "4.2");
  EXPECT_EQ(printed(large[0]["softmax"][2].get<double>() * 1e20, 1), "2.9");
  EXPECT_EQ(printed_all(large[1]["softmax"], 3), (Words{"0.971", "0.018", "0.011"}));
  EXPECT_EQ(printed(large[1]["exp_sum"], 2), "152.78");
  const Json exponentials = json_of({"explain", "--scores", "1,5,10,20,50", "--dk", "4"})["rules"][0]["exp"];
  EXPECT_EQ(printed(exponentials[0], 3), "2.718");
  EXPECT_EQ(printed(exponentials[1], 1), "148.4");
  EXPECT_EQ(printed(exponentials[2], 0), "22026");
  EXPECT_EQ(printed(exponentials[3], 0), "485165195");
  const Json vectors = json_of({"explain", "--q", "1,0,1,0", "--k", "0,1,1,1"});
  EXPECT_EQ(vectors["raw_scores"], Json({1.0}));
  EXPECT_EQ(vectors["rules"][1]["divisor"], 2);
  EXPECT_EQ(vectors["rules"][1]["scores"], Json({0.5}));
  const Json eight = json_of({"explain", "--scores", "-20,3,25,-15", "--dk", "64"})["rules"];
  EXPECT_GT(eight[0]["p_max"].get<double>(), 0.999);
  EXPECT_EQ(eight[1]["scores"], Json({-2.5, 0.375, 3.125, -1.875}));
  EXPECT_EQ(printed_all(eight[1]["softmax"], 3), (Words{"0.003", "0.060", "0.931", "0.006"}));
}

TEST(Command, ExplainTakesAnyRuleOfTheRegistry) {
  const Json rules = json_of({"rules"})["rules"];
  std::string all;
  for (const Json& rule : rules)
    if (rule["in_registry"]) {
      const std::string parameters = rule["parameters"];
      all += (all.empty() ? "" : ",") + rule["name"].get<std::string>() +
             (parameters.empty() || parameters[1] == '['  ? ""
              : parameters.find(", s") != parameters.npos ? "(2, 3)"
                                                          : "(2)");
    }
  const Json json = json_of({"explain", "--scores", "1,2,3", "--dk", "16", "--rules", all});
  EXPECT_EQ(json["rules"].size(), 9u) << all;
  EXPECT_EQ(
      json_of({"explain", "--scores", "1,2", "--dk", "16", "--rules", "unit_variance(2, 0.5)"})["rules"][0]["divisor"],
      4);
}

// Experiments against theory -----------------------------------------------------------------------------------------

TEST(Command, VarianceIsDk) {
  const Json json = json_of({"variance", "--dk", "1,3,64", "--pairs", "60000"});
  ASSERT_EQ(json["rows"].size(), 12u);
  for (const Json& row : json["rows"]) {
    EXPECT_EQ(row["expected"], row["dk"]);
    const double low = row["ci95"][0], high = row["ci95"][1];
    EXPECT_NEAR(row["variance"].get<double>(), row["dk"].get<double>(), 2 * (high - low)) << row;
    EXPECT_LT(high - low, 0.15 * row["dk"].get<double>()) << "too few pairs to tell";
    EXPECT_NEAR(row["variance_over_sqrt_dk"].get<double>(), row["variance"].get<double>() / row["dk"].get<double>(),
                1e-9);
  }
  for (const Json& term : json["square_terms"])
    EXPECT_NEAR(term["mean"].get<double>(), term["i"] == term["j"] ? 1 : 0, 6 * term["standard_error"].get<double>());
  EXPECT_EQ(printed(json["division"]["variance"], 2), "2.67");
  EXPECT_EQ(printed(json["division"]["variance_divided"], 2), "0.67");
  EXPECT_DOUBLE_EQ(json["division"]["ratio"].get<double>(), 4);
}

// d = 64, σ_q = 0.5, μ = 0.5, ρ = 0.2: 0.25·(64 + 4032·0.04) + 0.25·1.25·(64 + 4032·0.2).
TEST(Command, VarianceFollowsTheGeneralFormula) {
  const Json row = json_of({"variance", "--dk", "64", "--pairs", "100000", "--components", "normal", "--sigma-q", "0.5",
                            "--mean", "0.5", "--corr", "0.2"})["rows"][0];
  const double expected = 0.25 * (64 + 4032 * 0.04) + 0.25 * 1.25 * (64 + 4032 * 0.2), low = row["ci95"][0],
               high = row["ci95"][1];
  EXPECT_NEAR(row["expected"].get<double>(), expected, 1e-9);
  EXPECT_NEAR(row["variance"].get<double>(), expected, 2 * (high - low));
}

TEST(Command, PhaseAgreesWithQuadrature) {
  const Json json = json_of({"phase", "--dk", "4,64", "--keys", "16,128", "--queries", "32"});
  ASSERT_EQ(json["points"].size(), 12u);
  for (const Json& point : json["points"])
    for (const char* what : {"entropy", "p_max", "trace_j"})
      expect_agrees(point[what], point[what]["theory"], point.dump());
  for (const Json& c : json["critical_line"])
    EXPECT_DOUBLE_EQ(c["dk"].get<double>(), 2 * std::log(c["keys"].get<double>()));
}

TEST(Command, GradientAgreesWithTheJacobian) {
  const Json json = json_of({"gradient", "--dk", "8,64", "--keys", "64", "--queries", "32"});
  ASSERT_EQ(json["points"].size(), 6u);
  for (const Json& point : json["points"]) {
    expect_agrees(point["scores"]["mean_square"], point["scores"]["mean_square"]["theory"], point.dump());
    expect_agrees(point["trace_j"], point["trace_j"]["theory"], point.dump());
  }
}

TEST(Command, PrecisionTellsSaturationFromRounding) {
  const Json points =
      json_of({"precision", "--dk", "64", "--keys", "128", "--queries", "32", "--gains", "1"})["points"];
  ASSERT_EQ(points.size(), 12u);
  for (std::size_t rule = 0; rule < 3; ++rule)
    for (std::size_t dtype = 1; dtype < 4; ++dtype)
      EXPECT_NEAR(points[4 * rule + dtype]["p_max"].get<double>(), points[4 * rule]["p_max"].get<double>(), 0.02);
  EXPECT_TRUE(points[0]["signal_bits"].is_null());
}

TEST(Command, InitPredictsTheSpread) {
  const Json rows = json_of({"init", "--widths", "768", "--dk", "64", "--tokens", "32", "--batches", "8"})["rows"];
  ASSERT_EQ(rows.size(), 5u);
  const char* predicted[] = {"8.000", "4.000", "8.000", "16.000", "2.458"};
  for (std::size_t i = 0; i < 5; ++i) {
    EXPECT_EQ(printed(rows[i]["predicted_divisor"], 3), predicted[i]);
    const double divisor = rows[i]["predicted_divisor"];
    expect_agrees(rows[i]["variance"], divisor * divisor, rows[i].dump());
  }
}

// Weights start so that q and k have unit variance, and on the first step they and the batch are the same for all: in
// the first layer the spread of scores differs by the scale alone, up to the rounding of 16-term products in f32.
TEST(Command, TrainsEveryRuleOnTheSame) {
  const Json json =
      json_of({"train", "--dk", "16", "--steps", "4", "--batch", "8", "--seeds", "2", "--lr", "0.001,0.01"});
  ASSERT_EQ(json["rules"].size(), 3u);
  EXPECT_EQ(json["complete"], true);
  const auto first = [&](std::size_t rule, std::size_t run) {
    return json["rules"][rule]["runs"][run]["steps"]["heads"][0]["sigma"][0].get<double>();
  };
  for (std::size_t run = 0; run < 2; ++run) {
    EXPECT_NEAR(first(0, run) / first(1, run), 4, 4e-5);
    EXPECT_NEAR(first(1, run) / first(2, run), 4, 4e-5);
    EXPECT_GT(first(1, run), 0.5);
    EXPECT_LT(first(1, run), 2);
  }
  for (const Json& rule : json["rules"]) {
    EXPECT_EQ(rule["tuning"].size(), 2u);
    const std::string name = rule["rule"] == "none" ? "no scaling" : rule["formula"].get<std::string>();
    EXPECT_NE(json["conclusion"].get<std::string>().find("under " + name), std::string::npos) << json["conclusion"];
  }
}

TEST(Command, PlansAttentionOverRanks) {
  const Json plan = json_of({"plan", "--ranks", "1024", "--tokens", "10M", "--link", "400GB/s", "--causal"});
  EXPECT_EQ(plan["tokens"], 10000000);
  EXPECT_EQ(plan["layout"], "zigzag");
  EXPECT_EQ(plan["cluster"]["link"], 400e9);
  EXPECT_EQ(plan["cluster"]["latency"], 10e-6);
  ASSERT_EQ(plan["ways"].size(), 4u);
  for (const Json& way : plan["ways"]) {
    EXPECT_GT(way["efficiency"], 0);
    EXPECT_LE(way["efficiency"], 1);
  }
  // A ring sends on all of K and V but the last rank's: 8 heads, 2 × 128 components, 2 bytes.
  EXPECT_NEAR(plan["ways"][0]["forward"]["bytes_sent_by_a_rank"].get<double>(), 10e6 * 1023 / 1024 * 8 * 256 * 2, 8e4);
  // 32 heads over 1,024 ranks keep 32 of them busy.
  EXPECT_LT(plan["ways"][2]["efficiency"], 0.04);
  // A tenth of the bandwidth in bits is an eightieth: the messages of a ring can no longer hide.
  const Json slow = json_of({"plan", "--ranks", "16", "--tokens", "64k", "--link", "40Gb/s", "--ranks-per-node", "1"});
  EXPECT_EQ(slow["cluster"]["link"], 5e9);
  EXPECT_LT(slow["ways"][0]["efficiency"], 0.5);
  const Json tight = json_of({"plan", "--ranks", "8", "--tokens", "1M", "--memory", "18GB"});
  EXPECT_EQ(tight["why"], "fastest that fits");
  for (const Json& way : tight["ways"]) {
    if (way.contains("refused")) continue;
    EXPECT_EQ(way["memory_bytes"], std::max(way["forward"]["memory_bytes"], way["backward"]["memory_bytes"]));
    EXPECT_EQ(way["memory_bytes"] < 18e9, way["way"] == tight["way"]) << way["way"];
  }
}

TEST(Command, DoctorFindsNothing) {
  const Json json = json_of({"doctor"});
  EXPECT_EQ(json["healthy"], true);
  EXPECT_GE(json["checks"].size(), 3u);
}

TEST(Command, BenchTimes) {
  const Json json = json_of({"bench", "--rounds", "1"});
  ASSERT_GE(json["rows"].size(), 3u);
  for (const Json& row : json["rows"]) EXPECT_GT(row["gflops"].get<double>(), 0);
  EXPECT_GT(json["peak_gflops"].get<double>(), 0);
}

TEST(Command, NumbersDependOnTheSeedAndNotOnThreads) {
  for (const Words& words : {Words{"variance", "--dk", "1,5", "--pairs", "300000"},
                             {"phase", "--dk", "8", "--keys", "100", "--queries", "20", "--batches", "3"},
                             {"gradient", "--dk", "8", "--keys", "50", "--queries", "20", "--batches", "3"},
                             {"precision", "--dk", "8", "--keys", "50", "--queries", "20"},
                             {"init", "--widths", "64", "--dk", "16", "--tokens", "8", "--batches", "3"},
                             {"playground", "--keys", "300", "--queries", "70", "--rule", "none", "--sink", "0"},
                             {"train", "--dk", "4", "--steps", "3", "--batch", "2", "--seeds", "1", "--lr", "0.01"}}) {
    const auto with = [&](const Words& more) {
      Words all = words;
      all.insert(all.end(), more.begin(), more.end());
      return json_of(all);
    };
    const Json one = with({"--threads", "1"});
    EXPECT_EQ(one, with({"--threads", "3"})) << words[0];
    EXPECT_EQ(one, with({"--seed", "1"})) << words[0];
    EXPECT_NE(one, with({"--seed", "2"})) << words[0];
  }
}

TEST(Command, RefusedTrainingLeavesNoFolder) {
  const TemporaryDirectory folder;
  std::filesystem::create_directory(folder / "there");
  for (const char* out : {"new", "a/b/c", "there", "there/a"}) {
    const Finished done = rootdk({"train", "--dk", "0", "--steps", "1", "--out", (folder / out).string()});
    EXPECT_EQ(done.status, 2) << done.err;
  }
  EXPECT_EQ(folder.files(), 1u) << "only the one that was there";
  EXPECT_TRUE(std::filesystem::is_empty(folder / "there"));
}

// The tour -----------------------------------------------------------------------------------------------------------

TEST(Command, TourTellsAllOfIt) {
  const TemporaryDirectory folder;
  const std::string out = (folder / "a/b").string();
  const Finished done = rootdk({"tour", "--quick", "--out", out});
  EXPECT_EQ(done.status, 0) << done.err;
  EXPECT_EQ(done.err, "") << "no bar where there is no terminal";
  const Json results = Json::parse(read_file(folder / "a/b/results.json"));
  EXPECT_EQ(results["format"], "rootdk-results");
  EXPECT_EQ(results["complete"], true);
  Words ids;
  for (const Json& chapter : results["chapters"]) {
    ids.push_back(chapter["id"]);
    EXPECT_EQ(chapter["complete"], true);
    EXPECT_EQ(chapter["conclusion"], chapter["data"]["conclusion"]);
    EXPECT_NE(done.out.find(chapter["title"].get<std::string>()), done.out.npos);
  }
  EXPECT_EQ(ids, (Words{"one_hot", "worked", "variance", "phase", "gradient", "precision", "train", "init", "mean",
                        "whatif", "cost"}));
  const bool has_page = std::filesystem::exists(folder / "a/b/report.html");
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder / "a/b"), {}), has_page ? 2 : 1) << "nothing else";
  EXPECT_EQ(has_page, done.out.find("without D3") == done.out.npos && done.out.find("built with D3") == done.out.npos);
  if (has_page) {
    EXPECT_EQ(Json::parse(embedded(read_file(folder / "a/b/report.html"))), results)
        << "the page has the data beside it";
  }

  // The same numbers, but for times, on another number of threads, and printed instead.
  Json again = json_of({"tour", "--quick", "--threads", "1"});
  ASSERT_EQ(again["chapters"].size(), results["chapters"].size());
  for (std::size_t i = 0; i + 1 < again["chapters"].size(); ++i)
    EXPECT_EQ(again["chapters"][i]["data"], results["chapters"][i]["data"]);
}

}  // namespace
}  // namespace rootdk::test
