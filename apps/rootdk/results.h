// Results as they are kept: results.json (docs/results-json.md), and report.html, which is drawn from it; or a page
// alone, of one result.
#pragma once

#include <chrono>
#include <filesystem>
#include <string>

#include "common.h"
#include "destinations.h"
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
  Told told{report::json_of(result), report::text_of(result, output_layout(report::Detail::kShort)),
            report::conclusion_of(result)};
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

  /// Replaces both files, each whole. `laboratory` is the page with the engine in it; empty: the report alone.
  void keep(const std::filesystem::path& folder, std::string_view laboratory = {}) const;
  /// A sentence that says where they are, laid out.
  static std::string where(const std::filesystem::path& folder);

  /// The page, with the results inside it.
  std::string page() const;

 private:
  report::Json json_;
};

/// --html of a verb that has one result.
struct PageOption {
  std::string path;
  bool force = false;

  void declare(OptionList& list);
  /// Before anything is computed: refuses what could not be written. Destinations say what may be.
  void check(Destinations& destinations) const;
  /// Nothing, if the option was not given.
  void write(const Common& common, const Heading& heading, const Told& told, double seconds) const;
};

/// Seconds that run() takes.
template <class Run>
double timed(const Run& run) {
  const auto start = std::chrono::steady_clock::now();
  run();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace rootdk::app
