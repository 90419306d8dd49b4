#include "destinations.h"

#include <algorithm>
#include <fstream>
#include <string_view>
#include <system_error>

#include "base/refuse.h"
#include "results.h"

namespace rootdk::app {

namespace {

namespace fs = std::filesystem;

/// By whatever name; of a file that is not there, by its place.
bool same(const fs::path& a, const fs::path& b) {
  std::error_code error;
  if (fs::equivalent(a, b, error)) return true;
  const fs::path one = fs::weakly_canonical(a, error), other = fs::weakly_canonical(b, error);
  return !error && one == other;
}

/// Whether rootdk wrote it: pages name their generator, JSON its format, both near the beginning.
bool is_marked(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::string start(4096, '\0');
  file.read(start.data(), static_cast<std::streamsize>(start.size()));
  start.resize(static_cast<std::size_t>(file.gcount()));
  const auto has = [&](std::string_view mark) { return start.find(mark) != start.npos; };
  return has(R"(<meta name="generator" content="rootdk)") || (start.starts_with('{') && has(R"("format": "rootdk-)"));
}

}  // namespace

void Destinations::reads(const fs::path& path) {
  if (path.empty()) return;
  read_.push_back(path);
  std::error_code error;
  if (!fs::is_directory(path, error)) return;
  for (fs::directory_iterator entry(path, error), end; !error && entry != end; entry.increment(error))
    read_.push_back(entry->path());
}

void Destinations::writes(const char* option, const fs::path& path) {
  if (path.empty()) return;
  const auto is_this = [&](const fs::path& other) { return same(path, other); };
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (fs::exists(status) && !fs::is_regular_file(status))
    return;  // a pipe, a device; a directory is refused by whoever writes
  if (std::any_of(read_.begin(), read_.end(), is_this))
    base::refuse("{}: {} is read by this command, and would be written over", option, path.string());
  if (std::any_of(written_.begin(), written_.end(), is_this))
    base::refuse("{}: {} is also where another result goes", option, path.string());
  if (fs::exists(status) && !force_ && !is_marked(path))
    base::refuse("{}: {} is there already, and is no page or JSON of rootdk's; --force writes over it", option,
                 path.string());
  written_.push_back(path);
}

void Destinations::writes_results(const char* option, const fs::path& folder) {
  if (folder.empty()) return;
  for (const char* name : {Results::kData, Results::kPage}) writes(option, folder / name);
}

void Destinations::writes_runs(const char* option, const fs::path& folder, bool resume) {
  if (folder.empty()) return;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error))
    if (entry->path().extension() == ".safetensors" && !resume && !force_)
      base::refuse("{}: {} holds runs already ({}); --resume goes on with them, --force writes over them", option,
                   folder.string(), entry->path().filename().string());
  writes_results(option, folder);
}

}  // namespace rootdk::app
