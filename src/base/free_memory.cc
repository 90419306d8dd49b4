// The least of MemAvailable, the cgroups' limits (both versions) and RLIMIT_AS, and the sentence of a refusal.
#include "base/free_memory.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <string_view>
#include <vector>

#include "base/refuse.h"

namespace rootdk::base {

namespace {

constexpr std::int64_t kUnlimited = std::numeric_limits<std::int64_t>::max();

// What any call takes beside what it computes with: tables, a page or a JSON of its results, what allocators keep.
constexpr std::int64_t kBeside = 8 << 20;

std::vector<std::string_view> split(std::string_view text, char at) {
  std::vector<std::string_view> parts;
  for (std::size_t end; (end = text.find(at)) != text.npos; text.remove_prefix(end + 1))
    parts.push_back(text.substr(0, end));
  parts.push_back(text);
  return parts;
}

// All of the text but the end of its line; what is too large for an integer is the largest.
std::optional<std::int64_t> number(std::string_view text) {
  if (text.ends_with('\n')) text.remove_suffix(1);
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (end != text.data() + text.size() || value < 0) return {};
  if (error == std::errc::result_out_of_range) return text.starts_with('-') ? std::nullopt : std::optional(kUnlimited);
  return error == std::errc() ? std::optional(value) : std::nullopt;
}

// Of lines of names and numbers: "MemAvailable:   19632576 kB", "inactive_file 4096".
std::optional<std::int64_t> number_of(std::string_view name, const std::optional<std::string>& text) {
  if (!text) return {};
  for (std::string_view line : split(*text, '\n')) {
    if (!line.starts_with(name)) continue;
    line.remove_prefix(name.size());
    const std::size_t begin = line.find_first_not_of(": \t");
    if (begin == 0 || begin == line.npos) continue;  // a longer name, or no value
    line.remove_prefix(begin);
    const bool kilobytes = line.ends_with(" kB");
    const auto value = number(kilobytes ? line.substr(0, line.size() - 3) : line);
    return value && kilobytes ? std::min(*value, kUnlimited / 1024) * 1024 : value;
  }
  return {};
}

struct Version {
  std::string_view type, limit, use, cached[2];
};
constexpr Version kV1 = {
    "cgroup", "memory.limit_in_bytes", "memory.usage_in_bytes", {"total_inactive_file", "total_active_file"}};
constexpr Version kV2 = {"cgroup2", "memory.max", "memory.current", {"inactive_file", "active_file"}};

bool has(std::string_view list, std::string_view word) {
  const auto words = split(list, ',');
  return std::find(words.begin(), words.end(), word) != words.end();
}

// The group that memory is charged to: "4:memory:/a/b", "0::/a/b".
std::optional<std::string> group_of(const Version& version, std::string_view cgroups) {
  for (const std::string_view line : split(cgroups, '\n')) {
    const std::size_t first = line.find(':'), second = first == line.npos ? first : line.find(':', first + 1);
    if (second == line.npos) continue;
    const std::string_view controllers = line.substr(first + 1, second - first - 1);
    const bool ours =
        &version == &kV2 ? line.substr(0, first) == "0" && controllers.empty() : has(controllers, "memory");
    if (ours && line.substr(second + 1).starts_with('/')) return std::string(line.substr(second + 1));
  }
  return {};
}

struct Mount {
  std::string root, at;  ///< which group lies where
};

// "35 31 0:32 /root /at rw,relatime shared:1 - type source options"
std::optional<Mount> mount_of(const Version& version, std::string_view mounts) {
  for (const std::string_view line : split(mounts, '\n')) {
    const std::size_t dash = line.find(" - ");
    if (dash == line.npos) continue;
    const auto before = split(line.substr(0, dash), ' '), after = split(line.substr(dash + 3), ' ');
    if (before.size() < 6 || after.size() < 3 || after[0] != version.type) continue;
    if (&version == &kV1 && !has(after[2], "memory")) continue;
    return Mount{std::string(before[3]), std::string(before[4])};
  }
  return {};
}

std::optional<std::int64_t> left_in(const Version& version, const std::string& group, const ReadFile& read) {
  const auto at = [&](std::string_view file) { return read(group + "/" + std::string(file)); };
  const auto limit_text = at(version.limit), use_text = at(version.use);
  if (!limit_text || !use_text) return {};
  const auto limit = number(*limit_text), use = number(*use_text);  // "max" is no number
  if (!limit || !use) return {};
  const auto stat = at("memory.stat");
  std::int64_t taken = *use;
  for (const std::string_view name : version.cached) taken -= std::min(taken, number_of(name, stat).value_or(0));
  return std::max<std::int64_t>(0, *limit - taken);
}

// Up from the process's own group: each is bounded by those above it.
std::optional<std::int64_t> left_in_groups(const Version& version, const std::string& cgroups,
                                           const std::string& mounts, const ReadFile& read) {
  const auto mount = mount_of(version, mounts);
  auto group = group_of(version, cgroups);
  if (!mount || !group || group->size() > 4096) return {};
  std::string inside = *group;
  if (mount->root != "/") inside = inside.starts_with(mount->root + "/") ? inside.substr(mount->root.size()) : "";
  if (inside.find("/..") != inside.npos) inside.clear();  // a group outside of what can be seen from here
  std::optional<std::int64_t> least;
  for (;;) {
    while (inside.ends_with('/')) inside.pop_back();
    if (const auto left = left_in(version, mount->at + inside, read))
      least = std::min(left.value(), least.value_or(kUnlimited));
    if (inside.empty()) return least;
    inside.resize(inside.rfind('/'));
  }
}

std::optional<std::int64_t> left_of_address_space(const ReadFile& read, const AddressSpace& space, int threads) {
  const auto statm = read("/proc/self/statm");
  if (!space.limit || !statm) return {};
  const auto pages = number(split(*statm, ' ').front());
  if (!pages) return {};
  const std::int64_t used = std::min(*pages, kUnlimited / space.page) * space.page;
  const std::int64_t running = number_of("Threads", read("/proc/self/status")).value_or(1);
  const std::int64_t stacks = std::max<std::int64_t>(0, threads - running) * space.stack;
  return std::max<std::int64_t>(0, *space.limit - used - std::min(stacks, *space.limit));
}

// Three digits: a need is rounded up and what is free down, so that they never read alike.
std::string in_words(std::int64_t bytes, double (*round)(double)) {
  static constexpr const char* kUnits[] = {"bytes", "kB", "MB", "GB", "TB", "PB", "EB"};
  auto value = static_cast<double>(bytes);
  std::size_t unit = 0;
  for (; value >= 1000; ++unit) value /= 1000;
  const double digits = unit == 0 || value >= 100 ? 1 : value >= 10 ? 10 : 100;
  value = round(value * digits) / digits;
  if (value >= 1000) value /= 1000, ++unit;
  return fmt::format("{:.3g} {}", value, kUnits[unit]);
}

// Of the kernel's files, which give their size as 0.
std::optional<std::string> read_kernel_file(const std::string& path) {
  constexpr std::size_t kMostText = 4 << 20;
  const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) return {};
  std::string text;
  char piece[4096];
  ssize_t got = 0;
  while (text.size() < kMostText && (got = read(file, piece, sizeof piece)) > 0)
    text.append(piece, static_cast<std::size_t>(got));
  close(file);
  return got < 0 ? std::nullopt : std::optional(std::move(text));
}

std::int64_t with_beside(const MemoryNeed& need) { return std::min(need.bytes, kUnlimited - kBeside) + kBeside; }

AddressSpace address_space() {
  AddressSpace out;
  rlimit limit;
  if (getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY)
    out.limit = static_cast<std::int64_t>(std::min(limit.rlim_cur, static_cast<rlim_t>(kUnlimited)));
  if (const long page = sysconf(_SC_PAGESIZE); page > 0) out.page = page;
  pthread_attr_t attributes;
  std::size_t stack = 0;
  if (pthread_attr_init(&attributes) == 0) {
    if (pthread_attr_getstacksize(&attributes, &stack) == 0) out.stack = static_cast<std::int64_t>(stack);
    pthread_attr_destroy(&attributes);
  }
  return out;
}

}  // namespace

FreeMemory free_memory(const ReadFile& read, const AddressSpace& space, int threads) {
  FreeMemory out;
  const auto bound = [&](const std::optional<std::int64_t>& bytes, const char* limit) {
    if (bytes && *bytes < out.bytes) out = {*bytes, limit};
  };
  bound(number_of("MemAvailable", read("/proc/meminfo")), "");
  const std::string cgroups = read("/proc/self/cgroup").value_or(""),
                    mounts = read("/proc/self/mountinfo").value_or("");
  for (const Version* version : {&kV1, &kV2})
    bound(left_in_groups(*version, cgroups, mounts, read), "the cgroup's limit");
  bound(left_of_address_space(read, space, threads), "ulimit -v");
  return out;
}

void want_memory(const MemoryNeed& need, const FreeMemory& free) {
  if (fits(need, free)) return;
  const std::string what = need.argument.empty() ? "this" : fmt::format("{}: {}", need.argument, need.value);
  const std::string why = free.limit.empty() ? "" : fmt::format(" ({})", free.limit);
  throw Error(ErrorCode::kOutOfMemory,
              visible(fmt::format("{} would take {} of memory, but {} are free{}", what,
                                  in_words(with_beside(need), std::ceil), in_words(free.bytes, std::floor), why)));
}

}  // namespace rootdk::base

namespace rootdk {

FreeMemory free_memory(int threads) {
  return base::free_memory(base::read_kernel_file, base::address_space(), threads);
}

bool fits(const MemoryNeed& need, const FreeMemory& free) { return base::with_beside(need) <= free.bytes; }

void want_memory(const MemoryNeed& need) { base::want_memory(need, free_memory(need.threads)); }

}  // namespace rootdk
