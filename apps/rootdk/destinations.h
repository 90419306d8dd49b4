// Where a verb will write, checked before it computes anything: never over what it reads, and over nothing that
// somebody else wrote.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace rootdk::app {

inline constexpr const char* kForceHelp = "Write over files that are there, though rootdk did not write them";

class Destinations {
 public:
  explicit Destinations(bool force) : force_(force) {}

  /// A file that is read, or a directory with the files in it. An empty path is none.
  void reads(const std::filesystem::path& path);

  /// A file that will be written, if the option was given. Refuses a place where no file can be made, what is read or
  /// written under any name (a link, a hard link, another spelling), and what is there unless it carries the mark of
  /// rootdk's own pages and JSON or --force was given. Pipes and devices are written to.
  void writes(const char* option, const std::filesystem::path& path);

  /// A folder for results.json and report.html.
  void writes_results(const char* option, const std::filesystem::path& folder);

  /// A folder for runs: one that holds some wants to be resumed.
  void writes_runs(const char* option, const std::filesystem::path& folder, bool resume);

 private:
  void want_unread(const char* option, const std::filesystem::path& path) const;
  void claim(const char* option, const std::filesystem::path& path);

  bool force_;
  std::vector<std::filesystem::path> read_, written_;
};

}  // namespace rootdk::app
