// Results as they are kept: results.json (docs/results-json.md), and report.html, which is drawn from it.
#pragma once

#include <filesystem>
#include <string>

#include "common.h"
#include "report/json.h"

namespace rootdk::app {

/// What an experiment comes to.
struct Told {
  report::Json data;
  std::string text, conclusion;
  bool complete = true;
};

template <class Result>
Told tell(const Result& result) {
  Told told{report::json_of(result), {}, report::conclusion_of(result)};
  if constexpr (requires { report::text_of(result, report::Detail::kShort); })
    told.text = report::text_of(result, report::Detail::kShort);
  else
    told.text = report::text_of(result);
  if constexpr (requires { result.complete; }) told.complete = result.complete;
  return told;
}

/// What a chapter is called, and asks.
struct Heading {
  std::string id, title, lead;
};

class Results {
 public:
  static constexpr const char* kData = "results.json";
  static constexpr const char* kPage = "report.html";

  explicit Results(const Common& common);

  void set_quick(bool quick) { json_["quick"] = quick; }
  void set_complete(bool complete) { json_["complete"] = complete; }
  void add(const Heading& heading, const Told& told, double seconds);

  const report::Json& json() const { return json_; }

  /// Replaces both files, each whole.
  void keep(const std::filesystem::path& folder) const;
  /// A sentence that says where they are.
  static std::string where(const std::filesystem::path& folder);

 private:
  report::Json json_;
};

}  // namespace rootdk::app
