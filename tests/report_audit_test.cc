// The audit's page: what goes in comes out of it again, and what it could not show is refused. How it looks and behaves is for audit_page_test.py.
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <string>

#include "report/audit.h"
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

TEST(AuditPage, RefusesWhatItCouldNotShow) {
  if (!has_html()) GTEST_SKIP() << "built without D3";
  EXPECT_EQ(refusal(nlohmann::json::array()), "audit_json: is array, but an object was wanted");
  EXPECT_EQ(refusal({{"contexts", {1}}}), "audit_json: layers is null, but a list was wanted");
  EXPECT_EQ(refusal({{"contexts", {1}}, {"layers", {{{"layer", 0}}}}}), "audit_json: a layer has no list of heads");
  EXPECT_EQ(refusal({{"contexts", {1}}, {"layers", {{{"heads", {1}}}}}}), "audit_json: a head is number, but an object was wanted");
  EXPECT_TRUE(test::message_of([] { audit_html("{"); }).starts_with("audit_json: not JSON: "));
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
