// report::html: what goes in comes out of the page again whatever its strings are, and what is not results.json is
// refused. How the page looks and behaves is for page_test.py.
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <rapidcheck/gtest.h>

#include <string>
#include <string_view>
#include <vector>

#include "rootdk/error.h"
#include "rootdk/report/html.h"

namespace rootdk::report {
namespace {

using Json = nlohmann::json;

Json results_saying(const std::string& text) {
  return {{"format", "rootdk-results"},
          {"format_version", 2},
          {"chapters",
           {{{"title", text}, {"lead", text}, {"conclusion", text}, {"data", {{"experiment", text}, {text, text}}}}}}};
}

/// The script element with the results, as a browser finds it: up to the first "</script".
std::string_view embedded(std::string_view page) {
  const std::string_view start = "<script type=\"application/json\" id=\"results\">";
  const std::size_t from = page.find(start) + start.size();
  return page.substr(from, page.find("</script", from) - from);
}

std::string refusal(std::string_view json) {
  try {
    html(json);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    return error.what();
  }
  return "not refused";
}

class ReportHtml : public ::testing::Test {
 protected:
  void SetUp() override {
    if (refusal("").starts_with("html: this rootdk was built without D3")) GTEST_SKIP() << "built without D3";
  }
};

RC_GTEST_FIXTURE_PROP(ReportHtml, StringsComeBackAndNoneEndsTheScript, ()) {
  const std::vector<std::string> parts = {"<",      "</script>", "</",   "<!--",      "<script", "]]>",     "\u2028",
                                          "\u2029", "&lt;",      "\"",   "\\",        "\n",      "\\u003c", "é",
                                          "𝛔",      "d_k",       "@D3@", "@RESULTS@", "a"};
  std::string text;
  for (const std::size_t part :
       *rc::gen::container<std::vector<std::size_t>>(rc::gen::inRange<std::size_t>(0, parts.size())))
    text += parts[part];
  const Json results = results_saying(text);
  const std::string page = html(results.dump());
  const std::string_view inside = embedded(page);
  RC_ASSERT(Json::parse(inside) == results);
  RC_ASSERT(inside.find('<') == std::string_view::npos);
  RC_ASSERT(inside.find("\u2028") == std::string_view::npos && inside.find("\u2029") == std::string_view::npos);
}

RC_GTEST_PROP(LaboratoryHtml, HasTheResultsInItsPlaceAndAllElseAsItWas, (const std::string& text)) {
  const std::string before = "<!DOCTYPE html>\n@RESULTS@ {} <script>1</script>", after = "<p>{}</p></html>";
  const std::string place = "<script type=\"application/json\" id=\"results\">";
  const Json results = results_saying(Json(text).dump(-1, ' ', true, Json::error_handler_t::replace));
  const std::string page = laboratory_html(before + place + "{}</script>" + after, results.dump());
  RC_ASSERT(page.starts_with(before + place) && page.ends_with("</script>" + after));
  RC_ASSERT(Json::parse(embedded(page)) == results);
  RC_ASSERT(!is_laboratory(page));  // it has its results
}

TEST(LaboratoryHtml, RefusesAnotherPageAndWhatIsNoResults) {
  const std::string page = "<script type=\"application/json\" id=\"results\">{}</script>";
  EXPECT_TRUE(is_laboratory(page));
  EXPECT_FALSE(is_laboratory(""));
  EXPECT_THROW(laboratory_html("<html></html>", results_saying("x").dump()), Error);
  EXPECT_THROW(laboratory_html(page, "{}"), Error);
  EXPECT_THROW(laboratory_html(page, ""), Error);
}

TEST_F(ReportHtml, NumbersKeepTheirDigits) {
  std::string json = results_saying("x").dump();
  json.insert(1, R"("n": [0.1, 1e-320, 5.184705528587072e+21, -0.0, 12345678901234567890],)");
  EXPECT_EQ(embedded(html(json)), json);
}

TEST_F(ReportHtml, AByteOrderMarkIsLeftOut) {
  const std::string json = results_saying("x").dump();
  EXPECT_EQ(html("\xEF\xBB\xBF" + json), html(json));
}

TEST_F(ReportHtml, EveryBeginningOfResultsIsRefused) {
  const std::string json = results_saying("√d_k < 8").dump();
  for (std::size_t length = 0; length < json.size(); ++length)
    EXPECT_TRUE(refusal(json.substr(0, length)).starts_with("results_json: not JSON: "))
        << length << ": " << refusal(json.substr(0, length));
}

TEST_F(ReportHtml, RefusalsNameWhatCameAndWhatWasWanted) {
  const auto changed = [](auto change) {
    Json results = results_saying("x");
    change(results);
    return refusal(results.dump());
  };
  EXPECT_EQ(refusal("[]"), "results_json: is array, but an object was wanted");
  EXPECT_EQ(refusal("{}"), "results_json: format is null, but \"rootdk-results\" was wanted");
  EXPECT_EQ(changed([](Json& r) { r["format"] = "other"; }),
            "results_json: format is \"other\", but \"rootdk-results\" was wanted");
  EXPECT_EQ(changed([](Json& r) { r["format_version"] = 1; }),
            "results_json: format_version is 1, but this rootdk knows 2");
  EXPECT_EQ(changed([](Json& r) { r["chapters"] = 3; }), "results_json: chapters is number, but a list was wanted");
  EXPECT_EQ(changed([](Json& r) { r["chapters"].push_back(nullptr); }),
            "results_json: chapters[1] is null, but an object was wanted");
  EXPECT_EQ(changed([](Json& r) { r["chapters"][0].erase("lead"); }),
            "results_json: chapters[0].lead is null, but a string was wanted");
  EXPECT_EQ(changed([](Json& r) { r["chapters"][0]["data"] = "x"; }),
            "results_json: chapters[0].data is string, but an object was wanted");
  EXPECT_EQ(changed([](Json& r) { r["chapters"][0]["data"]["experiment"] = 1; }),
            "results_json: chapters[0].data.experiment is number, but a string was wanted");
}

TEST_F(ReportHtml, WhatNoBrowserCouldReadIsRefused) {
  std::string json = results_saying("x").dump();
  const auto with = [&](std::string_view more) { return std::string(json).insert(1, more); };
  EXPECT_NE(refusal(with("\"bad\": \"\xFF\",")).find("not JSON"), std::string::npos);
  EXPECT_NE(refusal(with("\"big\": 1e999,")).find("number overflow"), std::string::npos);
  EXPECT_NE(refusal(with("\"nan\": NaN,")).find("not JSON"), std::string::npos);
  EXPECT_NE(refusal(std::string(200000, '[')).find("not JSON"), std::string::npos);
  EXPECT_NE(refusal(json + "x").find("not JSON"), std::string::npos);
}

}  // namespace
}  // namespace rootdk::report
