// The audit's page: what goes in comes out of it again, and what it could not show is refused. How it looks and behaves
// is for audit_page_test.py.
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <string>

#include "report/audit.h"
#include "report/json.h"
#include "rootdk/report/html.h"
#include "support/message.h"

namespace rootdk::report {
namespace {

audit::Audit small() {
  audit::Audit out;
  out.model.name = "</script> <!-- \u2028 \"x\" d_k";
  out.contexts = {512};
  out.judged_at = 512;
  out.layers.resize(1);
  out.layers[0].attention.heads_q = 2;
  out.layers[0].heads.resize(2);
  for (std::size_t h = 0; h < 2; ++h) {
    audit::Head& head = out.layers[0].heads[h];
    head.head = static_cast<std::int64_t>(h);
    head.d_k = 64;
    head.sigma = head.ratio = h == 0 ? 1 : 5;
    head.contexts = {{512, 512, 0.3, 5.7, 200, 0.02, theory::Verdict::kSoft}};
    head.judgement.verdict = h == 0 ? theory::Verdict::kSoft : theory::Verdict::kFrozen;
    head.judgement.fix = "Divide.";
  }
  out.layers[0].heads[1].not_finite = 0;
  return out;
}

std::string refusal(const nlohmann::json& json) {
  return test::message_of([&] { audit_html(json.dump()); });
}

TEST(AuditPage, HoldsTheJsonAndNothingEndsTheScript) {
  if (!has_html()) GTEST_SKIP() << "built without D3";
  const Json json = json_of(small());
  const std::string page = audit_html(json.dump());
  const std::string start = "<script type=\"application/json\" id=\"results\">";
  const std::size_t from = page.find(start) + start.size();
  const std::string inside = page.substr(from, page.find("</script", from) - from);
  EXPECT_EQ(Json::parse(inside), json);
  EXPECT_EQ(inside.find('<'), inside.npos);
}

// What a link to the page shows before anybody opens it; no script runs there.
TEST(AuditPage, DescribesItself) {
  if (!has_html()) GTEST_SKIP() << "built without D3";
  audit::Audit audit = small();
  audit.model.name = "a\"><script>&\u202e";
  const std::string page = audit_html(dumped(json_of(audit)));
  const std::string head = page.substr(0, page.find("<style>")), name = "a&quot;&gt;&lt;script&gt;&amp;\\u202e";
  EXPECT_NE(head.find("<title>" + name + ": the scale of every head</title>"), head.npos) << head;
  EXPECT_NE(head.find("<meta property=\"og:title\" content=\"" + name + ": the scale of every head\">"), head.npos)
      << head;
  for (const char* tag : {"name=\"description\"", "property=\"og:description\""})
    EXPECT_NE(head.find(std::string("<meta ") + tag + " content=\"" + conclusion_of(audit) + "\">"), head.npos) << head;
  EXPECT_NE(head.find("<meta property=\"og:type\" content=\"article\">"), head.npos);
  EXPECT_EQ(head.find('@'), head.npos) << head;
}

TEST(AuditPage, RefusesWhatItCouldNotShow) {
  if (!has_html()) GTEST_SKIP() << "built without D3";
  EXPECT_EQ(refusal(nlohmann::json::array()), "audit_json: is array, but an object was wanted");
  EXPECT_EQ(refusal({{"contexts", {1}}}), "audit_json: layers is null, but a list was wanted");
  EXPECT_EQ(refusal({{"contexts", {1}}, {"layers", {{{"layer", 0}}}}}), "audit_json: a layer has no list of heads");
  EXPECT_EQ(refusal({{"contexts", {1}}, {"layers", {{{"heads", {1}}}}}}),
            "audit_json: a head is number, but an object was wanted");
  EXPECT_TRUE(test::message_of([] { audit_html("{"); }).starts_with("audit_json: not JSON: "));
}

audit::Head& head_of(audit::Audit& audit, std::size_t h) { return audit.layers[0].heads[h]; }

/// Of a ground as the audit sets it.
void stand_on(audit::Head& head, theory::Ground ground) {
  head.judgement.ground = ground;
  if (ground == theory::Ground::kEmbeddings) head.on_embeddings = {64, 8, 64, 8, 1.6};
  if (ground == theory::Ground::kMeasured) head.measured = audit::Measured{{100, 12.5, 10, 12.5, 2.5}, 40, 39, 1};
}

TEST(AuditJson, HasWhatAllResultsHave) {
  const Json json = json_of(small());
  EXPECT_EQ(json["experiment"], "audit");
  EXPECT_EQ(json["conclusion"], conclusion_of(small()));
  const Json clip = json_of(audit::Clipped{}, audit::Clip{100, true}, "");
  EXPECT_EQ(clip["experiment"], "audit");
  EXPECT_EQ(clip["conclusion"], "No head's largest score passed 100; nothing would change.");
}

TEST(AuditJson, CarriesTheGround) {
  audit::Audit audit = small();
  stand_on(head_of(audit, 0), theory::Ground::kWeights);
  stand_on(head_of(audit, 1), theory::Ground::kEmbeddings);
  Json heads = json_of(audit)["layers"][0]["heads"];
  EXPECT_EQ(heads[0]["ground"], "weights");
  EXPECT_FALSE(heads[0].contains("embeddings"));
  EXPECT_EQ(heads[1]["ground"], "embeddings");
  EXPECT_EQ(heads[1]["embeddings"],
            Json({{"variance", 64}, {"sigma", 8}, {"unit_divisor", 64}, {"ratio", 8}, {"sigma_over_isotropic", 1.6}}));
  stand_on(head_of(audit, 1), theory::Ground::kMeasured);
  heads = json_of(audit)["layers"][0]["heads"];
  EXPECT_EQ(heads[1]["ground"], "measured");
  EXPECT_EQ(heads[1]["measured"]["sigma"], 12.5);
  EXPECT_EQ(heads[1]["measured"]["largest_raw"], 39);
  const std::string csv = csv_of(audit);
  EXPECT_NE(csv.find("not_finite,verdict,ground,embeddings_sigma,"), csv.npos) << csv;
  EXPECT_NE(csv.find(",0,soft,weights,,"), csv.npos) << csv;
  EXPECT_NE(csv.find(",0,frozen,measured,8,"), csv.npos) << csv;
}

// What stands on weights is never told as a fact; what was measured is.
TEST(AuditText, SaysWhatVerdictsStandOn) {
  audit::Audit audit = small();
  const auto ground = [&](theory::Ground first, theory::Ground second) {
    audit = small();
    stand_on(head_of(audit, 0), first);
    stand_on(head_of(audit, 1), second);
  };
  ground(theory::Ground::kWeights, theory::Ground::kWeights);
  EXPECT_NE(text_of(audit).find("All verdicts here are from the weights alone: they hold if inputs are isotropic"),
            std::string::npos)
      << text_of(audit);
  EXPECT_TRUE(
      conclusion_of(audit).starts_with("At 512 keys (from the weights alone): 1 frozen and 1 soft. If inputs were "
                                       "isotropic, √d_k would be within"))
      << conclusion_of(audit);
  ground(theory::Ground::kEmbeddings, theory::Ground::kEmbeddings);
  EXPECT_NE(text_of(audit).find("All verdicts here are on the embeddings"), std::string::npos) << text_of(audit);
  EXPECT_TRUE(conclusion_of(audit).starts_with("At 512 keys (on the embeddings): 1 frozen and 1 soft. If every layer's "
                                               "inputs were like the embeddings, √d_k would be"))
      << conclusion_of(audit);
  EXPECT_NE(text_of(audit).find("σ weights  σ embed."), std::string::npos) << text_of(audit);
  ground(theory::Ground::kMeasured, theory::Ground::kMeasured);
  EXPECT_NE(text_of(audit).find("All verdicts here are measured."), std::string::npos) << text_of(audit);
  EXPECT_TRUE(conclusion_of(audit).starts_with("At 512 keys: 1 frozen and 1 soft. √d_k is within"))
      << conclusion_of(audit);
  EXPECT_NE(text_of(audit).find("σ weights  σ meas."), std::string::npos) << text_of(audit);
  ground(theory::Ground::kMeasured, theory::Ground::kWeights);
  EXPECT_NE(text_of(audit).find("Verdicts here: 1 measured and 1 from the weights alone."), std::string::npos)
      << text_of(audit);
  // What is not finite is so on any ground.
  head_of(audit, 1).overflows = true;
  EXPECT_NE(text_of(audit).find("All verdicts here are measured."), std::string::npos) << text_of(audit);
}

TEST(AuditText, HasWordsAndFixForEveryBadHead) {
  audit::Audit audit = small();
  audit.layers[0].heads.resize(4, audit.layers[0].heads[1]);
  for (std::size_t h = 0; h < 4; ++h) {
    audit.layers[0].heads[h].head = static_cast<std::int64_t>(h);
    audit.layers[0].heads[h].judgement.words = "Words of " + std::to_string(h) + ".";
  }
  const std::string all = text_of(audit);
  for (const char* bad : {"0.1: Words of 1. Divide.", "0.2: Words of 2. Divide.", "0.3: Words of 3. Divide."})
    EXPECT_NE(all.find(bad), all.npos) << all;
  EXPECT_EQ(all.find("Words of 0."), all.npos) << "the soft one needs none";
  const std::string two = text_of(audit, {.colour = false, .worst = 2});
  EXPECT_EQ(two.find("Words of 3."), two.npos) << two;
  EXPECT_NE(two.find("… and 1 more head that is not soft: --worst 3 shows all of them."), two.npos) << two;
}

TEST(AuditText, CountsAsPeopleDo) {
  audit::Audit audit = small();
  audit.layers[0].attention.heads_q = 1;
  audit.layers[0].heads.resize(1);
  const std::string text = text_of(audit);
  EXPECT_EQ(text.find("1 heads"), text.npos) << text;
  EXPECT_EQ(text.find("1 attention layers"), text.npos) << text;
  EXPECT_NE(text.find("1 attention layer of 1 head"), text.npos) << text;
  EXPECT_NE(text.find("The head furthest from right"), text.npos) << text;
  audit::Clipped one;
  one.heads.resize(1);
  one.tensors = {"a"};
  EXPECT_EQ(conclusion_of(one, audit::Clip{100, true}, ""),
            "1 head in 1 tensor would be shrunk: the same inputs would then give at most 100.");
}

TEST(AuditText, TheMedianOfAnEvenNumberLiesBetween) {
  EXPECT_NE(conclusion_of(small()).find("is 3.00 times √d_k at the median, from 1.00 to 5.00"), std::string::npos)
      << conclusion_of(small());
  std::vector<audit::HeadDrift> drift(2);
  drift[0].growth = 2, drift[1].growth = 5;
  EXPECT_NE(text_of(drift, 0).find("3.50 times what it was at the median, from 2.00 to 5.00"), std::string::npos)
      << text_of(drift, 0);
}

TEST(AuditText, AVerdictOnAnotherGroundThanTheNumbersSaysSo) {
  std::vector<audit::HeadDrift> drift(1);
  drift[0].growth = 2, drift[0].verdict_before = theory::Verdict::kSharp,
  drift[0].verdict_after = theory::Verdict::kSoft;
  EXPECT_NE(text_of(drift, 0).find("σ: weights"), std::string::npos) << text_of(drift, 0);
  EXPECT_EQ(text_of(drift, 0).find("soft ("), std::string::npos) << text_of(drift, 0);
  drift[0].verdict_after_ground = theory::Ground::kMeasured;
  EXPECT_NE(text_of(drift, 0).find("soft (measured)"), std::string::npos) << text_of(drift, 0);
  EXPECT_EQ(text_of(drift, 0).find("sharp ("), std::string::npos) << text_of(drift, 0);
}

// A folder's name is the model's; it may hold anything.
TEST(AuditText, NamesSteerNothing) {
  audit::Audit audit = small();
  audit.model.name = "a\u202eb\x1b[2J";
  audit.model.notes = {"tensor \u2066x"};
  const std::string text = text_of(audit);
  EXPECT_NE(text.find("a\\u202eb\\x1b[2J"), text.npos) << text;
  EXPECT_NE(text.find("tensor \\u2066x"), text.npos) << text;
  EXPECT_EQ(text.find("\u202e"), text.npos);
  const std::string json = dumped(json_of(audit));
  EXPECT_EQ(json.find("\u202e"), json.npos);
  EXPECT_EQ(Json::parse(json)["model"], audit.model.name) << "an escape that means the same";
}

TEST(AuditText, NamesTheHeadsThatAreSo) {
  audit::Audit audit = small();
  head_of(audit, 1).judgement.codes = {theory::Verdict::kExploding, theory::Verdict::kFrozen};
  head_of(audit, 0).judgement.codes = {theory::Verdict::kSoft};
  stand_on(head_of(audit, 1), theory::Ground::kWeights);
  EXPECT_EQ(heads_that_are(audit, {}), "");
  EXPECT_EQ(heads_that_are(audit, {theory::Verdict::kSharp}), "");
  EXPECT_EQ(heads_that_are(audit, {theory::Verdict::kFrozen}), "frozen (1 head, from the weights alone): 0.1")
      << "though exploding is more serious";
  stand_on(head_of(audit, 1), theory::Ground::kMeasured);
  EXPECT_EQ(heads_that_are(audit, {theory::Verdict::kFrozen, theory::Verdict::kSoft}),
            "frozen (1 head): 0.1; soft (1 head): 0.0");
}

// The finding first; what was not measured would be.
TEST(AuditText, HasAHeadline) {
  audit::Audit audit = small();
  EXPECT_EQ(headline_of(audit), "1 of 2 heads is frozen at 512 keys");
  EXPECT_EQ(json_of(audit)["headline"], headline_of(audit));
  stand_on(head_of(audit, 0), theory::Ground::kWeights);
  EXPECT_EQ(headline_of(audit), "1 of 2 heads is frozen at 512 keys") << "the other's ground is not its own";
  stand_on(head_of(audit, 1), theory::Ground::kWeights);
  EXPECT_EQ(headline_of(audit), "1 of 2 heads would be frozen at 512 keys");
  head_of(audit, 0).not_finite = 3;
  head_of(audit, 0).judgement.verdict = theory::Verdict::kNotFinite;
  EXPECT_EQ(headline_of(audit), "1 of 2 heads is not finite, 1 would be frozen at 512 keys");
  head_of(audit, 0).not_finite = 0;
  head_of(audit, 0).judgement.verdict = theory::Verdict::kUniform;
  EXPECT_EQ(headline_of(audit), "1 of 2 heads would be frozen, 1 would be uniform at 512 keys");
  for (std::size_t h = 0; h < 2; ++h) head_of(audit, h).judgement.verdict = theory::Verdict::kSharp;
  EXPECT_EQ(headline_of(audit), "No head would be frozen at 512 keys; 2 of 2 heads would be sharp");
  for (std::size_t h = 0; h < 2; ++h) stand_on(head_of(audit, h), theory::Ground::kMeasured);
  EXPECT_EQ(headline_of(audit), "No head is frozen at 512 keys; 2 of 2 heads are sharp");
  for (std::size_t h = 0; h < 2; ++h) head_of(audit, h).judgement.verdict = theory::Verdict::kSoft;
  EXPECT_EQ(headline_of(audit), "No head is near freezing at 512 keys");
  EXPECT_EQ(headline_of({}), "No attention was found");
}

TEST(AuditText, PutsTheMostSeriousFirst) {
  const audit::Audit audit = small();
  const std::string text = text_of(audit, {.colour = false, .worst = 1});
  EXPECT_NE(text.find("\n  0.1 "), text.npos) << text;
  EXPECT_EQ(text.find("\n  0.0 "), text.npos) << text;
  EXPECT_NE(conclusion_of(audit).find("1 frozen and 1 soft"), std::string::npos) << conclusion_of(audit);
  audit::Audit empty;
  empty.model.name = "nothing";
  EXPECT_NE(text_of(empty).find("no attention was found"), std::string::npos);
}

}  // namespace
}  // namespace rootdk::report
