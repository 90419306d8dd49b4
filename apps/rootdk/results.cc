// Chapters gathered into one JSON, and the files that are written from it.
#include "results.h"

#include <fmt/format.h>

#include "rootdk/report/html.h"
#include "rootdk/version.h"

namespace rootdk::app {

Results::Results(const Common& common)
    : json_{{"format", "rootdk-results"},      {"format_version", 2}, {"rootdk", ROOTDK_VERSION}, {"seed", common.seed},
            {"threads", base::free_threads()}, {"quick", false},      {"complete", false}} {
  json_["machine"] = report::json_of(lab::examine());
  json_["rules"] = report::json_of(lab::all_rules())["rules"];
  json_["chapters"] = report::Json::array();
}

void Results::add(const Heading& heading, const Told& told, double seconds) {
  json_["chapters"].push_back({{"id", heading.id},
                               {"title", heading.title},
                               {"lead", heading.lead},
                               {"conclusion", told.conclusion},
                               {"complete", told.complete},
                               {"seconds", seconds},
                               {"data", told.data}});
}

void Results::keep(const std::filesystem::path& folder, std::string_view laboratory) const {
  const std::string json = report::dumped(json_);
  write_file(folder / kData, json);
  if (!laboratory.empty()) write_file(folder / kPage, report::laboratory_html(laboratory, json));
  else if (report::has_html()) write_file(folder / kPage, report::html(json));
}

std::string Results::page() const { return report::html(report::dumped(json_)); }

std::string Results::where(const std::filesystem::path& folder) {
  const auto shown = [&](const char* name) { return report::unbroken(base::visible((folder / name).string())); };
  return output_layout().wrap(
      report::has_html() ? fmt::format("The report is {}, its data {}.", shown(kPage), shown(kData))
                         : fmt::format("The data is in {}; for {} rootdk must be built with D3 (Debian: node-d3).",
                                       shown(kData), kPage));
}

void PageOption::declare(OptionList& list) {
  list.option("--html", path, "Write a page there that needs nothing else");
  list.flag("--force", force, kForceHelp);
}

void PageOption::check(Destinations& destinations) const {
  if (!path.empty() && !report::has_html())
    base::refuse("--html: this rootdk was built without D3, which its pages need (Debian: node-d3)");
  destinations.writes("--html", path);
}

void PageOption::write(const Common& common, const Heading& heading, const Told& told, double seconds) const {
  if (path.empty()) return;
  Results results(common);
  results.add(heading, told, seconds);
  results.set_complete(told.complete);
  write_file(path, results.page());
}

}  // namespace rootdk::app
