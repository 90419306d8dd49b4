// An index before a whole file, that before shards; links may stay inside or lead into a Hub cache's blobs.
#include "checkpoint/directory.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <set>
#include <system_error>
#include <utility>

#include "checkpoint/hints.h"
#include "checkpoint/text.h"

namespace rootdk::checkpoint {

namespace fs = std::filesystem;

namespace {

// model-00002-of-00005.safetensors
struct Shard {
  std::string stem;
  int number = 0, total = 0;
};

std::optional<Shard> shard_of(std::string_view name, std::string_view ending) {
  constexpr std::size_t kDigits = 5, kTail = 1 + kDigits + 4 + kDigits;  // -00002-of-00005
  name.remove_suffix(ending.size());
  if (name.size() <= kTail) return {};
  const std::string_view tail = name.substr(name.size() - kTail);
  const auto number = [&](std::size_t at) {
    int value = -1;
    const std::string_view digits = tail.substr(at, kDigits);
    const auto result = std::from_chars(digits.data(), digits.data() + digits.size(), value);
    return result.ptr == digits.data() + digits.size() ? value : -1;
  };
  Shard shard = {std::string(name.substr(0, name.size() - kTail)), number(1), number(1 + kDigits + 4)};
  if (tail[0] != '-' || tail.substr(1 + kDigits, 4) != "-of-" || shard.number < 1 || shard.total < shard.number)
    return {};
  return shard;
}

std::vector<std::string> ending_with(const std::set<std::string>& names, std::string_view ending) {
  std::vector<std::string> found;
  for (const std::string& name : names)
    if (name.ends_with(ending) && name.size() > ending.size()) found.push_back(name);
  return found;
}

[[noreturn]] void refuse_several(const fs::path& directory, const std::vector<std::string>& names) {
  constexpr std::size_t kNamed = 5;
  std::string shown;
  for (std::size_t i = 0; i < std::min(kNamed, names.size()); ++i) shown += (i > 0 ? ", " : "") + printable(names[i]);
  if (names.size() > kNamed) shown += fmt::format(" and {} more", names.size() - kNamed);
  refuse("{}: {}: open one of them", printable(directory.native()), shown);
}

// The only one, or all of one set of shards.
std::vector<std::string> one_or_shards(const fs::path& directory, const std::set<std::string>& names,
                                       std::string_view ending) {
  std::vector<std::string> found = ending_with(names, ending);
  if (found.empty()) return {};
  const auto first = shard_of(found.front(), ending);
  if (!first) {
    if (found.size() > 1) refuse_several(directory, found);
    return found;
  }
  std::vector<std::string> shards;
  for (int i = 1; i <= first->total; ++i) {
    shards.push_back(fmt::format("{}-{:05}-of-{:05}{}", first->stem, i, first->total, ending));
    if (!names.contains(shards.back()))
      refuse("{}: missing, though {} is there", printable((directory / shards.back()).native()),
             printable(found.front()));
  }
  if (found.size() != shards.size()) refuse_several(directory, found);
  return shards;
}

// Whether `real` is in the directory, or a blob of the cache that the directory is a snapshot in.
bool stays_in(const fs::path& directory, const fs::path& real) {
  const fs::path inside = real.lexically_relative(directory);
  if (!inside.empty() && *inside.begin() != "..") return true;
  for (fs::path up = directory; up.has_relative_path(); up = up.parent_path())
    if (up.filename() == "snapshots") return real.parent_path() == up.parent_path() / "blobs";
  return false;
}

}  // namespace

Choice choose_files(const fs::path& directory, std::set<std::string> elsewhere) {
  const bool here = elsewhere.empty();
  std::set<std::string> names = std::move(elsewhere);
  std::error_code error;
  for (fs::directory_iterator at(directory, error), end; !error && at != end; at.increment(error))
    names.insert(at->path().filename().native());
  if (error && (here || fs::exists(directory)))
    refuse("{}: cannot be listed: {}", printable(directory.native()), error.message());

  constexpr const char* kIndex = "model.safetensors.index.json";
  constexpr const char* kWhole = "model.safetensors";
  if (names.contains(kIndex)) return {kIndex, {}};
  const std::vector<std::string> indices = ending_with(names, ".safetensors.index.json");
  if (indices.size() > 1) refuse_several(directory, indices);
  if (!indices.empty()) return {indices.front(), {}};
  if (names.contains(kWhole)) return {{}, {kWhole}};
  for (const char* ending : {".safetensors", ".gguf", ".npz"})
    if (auto files = one_or_shards(directory, names, ending); !files.empty()) return {{}, std::move(files)};
  const auto pickle =
      std::find_if(names.begin(), names.end(), [](const std::string& name) { return is_pickle_name(name); });
  if (pickle != names.end())
    refuse("{}: no .safetensors, .gguf or .npz is in it, but {}, {}", printable(directory.native()), printable(*pickle),
           how_to_convert(directory / *pickle));
  refuse("{}: no .safetensors, .gguf or .npz is in it", printable(directory.native()));
}

std::shared_ptr<const Source> open_in(const fs::path& directory, const std::string& name, const OpenOptions& options) {
  const fs::path path = directory / name;
  std::error_code error;
  if (options.follow_links || !fs::is_symlink(fs::symlink_status(path, error)))
    return options.follow_links ? Source::open(path, options) : Source::open_real(path, path, options);
  const fs::path real = fs::canonical(path, error), home = error ? fs::path() : fs::canonical(directory, error);
  if (error) refuse("{}: cannot be opened: {}", printable(path.native()), error.message());
  if (!stays_in(home, real))
    refuse("{}: a symbolic link that leads out of its directory, to {}", printable(path.native()),
           printable(real.native()));
  return Source::open_real(path, real, options);
}

}  // namespace rootdk::checkpoint
