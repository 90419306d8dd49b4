// Files compared by what they are rather than by name, and the marks by which rootdk knows its own.
#include "destinations.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <string_view>
#include <system_error>

#include "base/real_path.h"
#include "base/refuse.h"
#include "results.h"

namespace rootdk::app {

namespace {

namespace fs = std::filesystem;

/// By whatever name; of a file that is not there, by its place.
bool same(const fs::path& a, const fs::path& b) {
  std::error_code error;
  return fs::equivalent(a, b, error) || base::real_path(a) == base::real_path(b);
}

/// Refuses what cannot be written for all that is known now: a disk may still be full later.
void want_place(const char* option, const fs::path& path) {
  const auto fail = [&](int why) {
    base::refuse("{}: {}: {}", option, path.string(), std::generic_category().message(why));
  };
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (fs::is_directory(status)) fail(EISDIR);
  if (fs::exists(status) && !fs::is_regular_file(status)) return;  // a pipe or a device says for itself
  if (!path.has_filename()) fail(ENOENT);
  const fs::path folder = base::real_path(path).parent_path();  // where it is made, to be renamed when it is whole
  if (fs::exists(folder, error) && !fs::is_directory(folder, error)) fail(ENOTDIR);
  if (::access(folder.c_str(), W_OK | X_OK) != 0) fail(errno);
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
  want_place(option, path);
  claim(option, path);
}

void Destinations::want_unread(const char* option, const fs::path& path) const {
  if (std::any_of(read_.begin(), read_.end(), [&](const fs::path& other) { return same(path, other); }))
    base::refuse("{}: {} is read by this command, and would be written over", option, path.string());
}

void Destinations::claim(const char* option, const fs::path& path) {
  const auto is_this = [&](const fs::path& other) { return same(path, other); };
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (fs::exists(status) && !fs::is_regular_file(status)) return;  // a pipe, a device
  want_unread(option, path);
  if (std::any_of(written_.begin(), written_.end(), is_this))
    base::refuse("{}: {} is also where another result goes", option, path.string());
  if (fs::exists(status) && !force_ && !is_marked(path))
    base::refuse("{}: {} is there already, and is no page or JSON of rootdk's; --force writes over it", option,
                 path.string());
  written_.push_back(path);
}

void Destinations::writes_results(const char* option, const fs::path& folder) {
  if (folder.empty()) return;
  std::error_code error;
  const bool is_there = fs::exists(folder, error);  // if not, making it is the first that happens
  for (const char* name : {Results::kData, Results::kPage}) {
    if (is_there) want_place(option, folder / name);
    claim(option, folder / name);
  }
}

void Destinations::writes_runs(const char* option, const fs::path& folder, bool resume) {
  if (folder.empty()) return;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
    if (entry->path().extension() != ".safetensors") continue;
    if (!resume && !force_)
      base::refuse("{}: {} holds runs already ({}); --resume goes on with them, --force writes over them", option,
                   folder.string(), entry->path().filename().string());
    want_unread(option, entry->path());
  }
  writes_results(option, folder);
}

}  // namespace rootdk::app
