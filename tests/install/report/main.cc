// A program of somebody else's over rootdk::report: a page, JSON and back, and a sentence.
#include <rootdk/report/html.h>
#include <rootdk/report/results.h>
#include <rootdk/report/stats_json.h>

int main() {
  namespace report = rootdk::report;
  const char* results = R"({"format": "rootdk-results", "format_version": 2, "chapters": []})";
  if (report::has_html() && !report::html(results).ends_with("</html>\n")) return 1;
  if (report::to_json(rootdk::lab::all_rules()).find("sqrt_dk") == std::string::npos) return 1;
  if (report::to_sentence(rootdk::lab::explain({.scores = {1, 2}, .dk = 4})).empty()) return 1;
  return report::stats_from_json(report::to_json(rootdk::Stats{.batch = 3})).batch == 3 ? 0 : 1;
}
