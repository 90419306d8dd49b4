// How much memory is free: what the kernel's files say, whatever is in them, and the refusal of what is more.
#include "base/free_memory.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "support/message.h"

namespace rootdk::base {
namespace {

constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max(), kGiB = std::int64_t{1} << 30;

/// Files by their paths.
struct Files : std::map<std::string, std::string> {
  using map::map;

  FreeMemory free(const AddressSpace& space = {}, int threads = 1) const {
    const auto read = [this](const std::string& path) {
      const auto found = find(path);
      return found == end() ? std::nullopt : std::optional(found->second);
    };
    return free_memory(read, space, threads);
  }
};

Files with(Files files, const Files& more) {
  for (const auto& [path, text] : more) files[path] = text;
  return files;
}

const Files kMachine = {
    {"/proc/meminfo",
     "MemTotal:       24684100 kB\nMemFree:        17270160 kB\nMemAvailable:   19632576 kB\nBuffers: 1 kB\n"}};
constexpr std::int64_t kAvailable = std::int64_t{19632576} * 1024;

const Files kV2 = with(
    kMachine,
    {{"/proc/self/cgroup", "0::/jobs/this\n"},
     {"/proc/self/mountinfo", "22 1 8:1 / / rw shared:1 - ext4 /dev/sda1 rw\n"
                              "35 22 0:32 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n"}});
const std::string kJobs = "/sys/fs/cgroup/jobs/", kThis = kJobs + "this/";

const Files kV1 =
    with(kMachine, {{"/proc/self/cgroup", "9:name=systemd:/\n4:cpu,memory:/docker/ab\n0::/\n"},
                    {"/proc/self/mountinfo", "31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755\n"
                                             "33 31 0:30 / /sys/fs/cgroup/pids rw - cgroup cgroup rw,pids\n"
                                             "35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"}});

TEST(FreeMemory, IsWhatTheMachineHasAvailable) {
  EXPECT_EQ(kMachine.free().bytes, kAvailable);
  EXPECT_EQ(kMachine.free().limit, "");
  EXPECT_EQ(Files().free().bytes, kMost);  // nobody says
  EXPECT_EQ(Files({{"/proc/meminfo", "MemFree: 5 kB\nMemAvailableNot: 7 kB\n"}}).free().bytes, kMost);
  EXPECT_EQ(Files({{"/proc/meminfo", "MemAvailable: 5 kB"}}).free().bytes, 5 * 1024);
  EXPECT_EQ(Files({{"/proc/meminfo", "MemAvailable: 99999999999999999999999999 kB\n"}}).free().bytes,
            kMost / 1024 * 1024);
  for (const char* text :
       {"MemAvailable: -5 kB\n", "MemAvailable: x kB\n", "MemAvailable:\n", "MemAvailable: 5 kBx\n", ""})
    EXPECT_EQ(Files({{"/proc/meminfo", text}}).free().bytes, kMost) << text;
}

TEST(FreeMemory, IsWhatTheLimitsOfCgroupsLeave) {
  const auto left = [](const Files& more) { return with(kV2, more).free(); };
  EXPECT_EQ(left({}).bytes, kAvailable);
  EXPECT_EQ(left({{kThis + "memory.max", "max\n"}, {kThis + "memory.current", "4096\n"}}).bytes, kAvailable);
  const Files own = {{kThis + "memory.max", "4294967296\n"}, {kThis + "memory.current", "1073741824\n"}};
  EXPECT_EQ(left(own).bytes, 3 * kGiB);
  EXPECT_EQ(left(own).limit, "the cgroup's limit");
  // A group above it has less, and so has the one at the top.
  const Files above = with(own, {{kJobs + "memory.max", "2147483648\n"}, {kJobs + "memory.current", "1610612736\n"}});
  EXPECT_EQ(left(above).bytes, kGiB / 2);
  EXPECT_EQ(
      left(with(above, {{"/sys/fs/cgroup/memory.max", "4096\n"}, {"/sys/fs/cgroup/memory.current", "9999\n"}})).bytes,
      0);
  // What files were read into gives way.
  EXPECT_EQ(left(with(own, {{kThis + "memory.stat", "anon 1\nactive_file 1000\ninactive_file 500\nfile 7\n"}})).bytes,
            3 * kGiB + 1500);
  EXPECT_EQ(left(with(own, {{kThis + "memory.stat", "active_file 99999999999999999999\n"}})).bytes, 4 * kGiB);
  // More than there is.
  EXPECT_EQ(left({{kThis + "memory.max", "9223372036854771712\n"}, {kThis + "memory.current", "0\n"}}).limit, "");
}

TEST(FreeMemory, KnowsTheOlderCgroups) {
  const auto file = [](const std::string& group, const std::string& name) {
    return "/sys/fs/cgroup/memory" + group + "/memory." + name;
  };
  const Files own =
      with(kV1, {{file("/docker/ab", "limit_in_bytes"), "2147483648\n"},
                 {file("/docker/ab", "usage_in_bytes"), "1073741824\n"},
                 {file("/docker/ab", "stat"), "inactive_file 5\ntotal_inactive_file 100\ntotal_active_file 11\n"}});
  EXPECT_EQ(own.free().bytes, kGiB + 111);
  EXPECT_EQ(with(own, {{file("", "limit_in_bytes"), "1073741824\n"}, {file("", "usage_in_bytes"), "1073741820\n"}})
                .free()
                .bytes,
            4);
  // In a container the group's own directory is what is mounted.
  Files inside =
      with(kV1, {{"/proc/self/mountinfo", "35 31 0:32 /docker/ab /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n"},
                 {file("", "limit_in_bytes"), "4096\n"},
                 {file("", "usage_in_bytes"), "1096\n"}});
  EXPECT_EQ(inside.free().bytes, 3000);
  inside["/proc/self/cgroup"] = "4:memory:/docker/ab/inner\n";
  EXPECT_EQ(inside.free().bytes, 3000);
  inside[file("/inner", "limit_in_bytes")] = "100\n", inside[file("/inner", "usage_in_bytes")] = "40\n";
  EXPECT_EQ(inside.free().bytes, 60);
}

TEST(FreeMemory, NeverLeavesWhereCgroupsAreMounted) {
  std::vector<std::string> asked;
  const auto read = [&](const std::string& path) -> std::optional<std::string> {
    asked.push_back(path);
    if (path == "/proc/self/cgroup") return "0::/../../etc\n";
    if (path == "/proc/self/mountinfo") return kV2.at("/proc/self/mountinfo");
    return {};
  };
  free_memory(read, {}, 1);
  for (const std::string& path : asked) {
    EXPECT_EQ(path.find(".."), path.npos) << path;
    EXPECT_TRUE(path.starts_with("/proc/") || path.starts_with("/sys/fs/cgroup/")) << path;
  }
}

TEST(FreeMemory, IsWhatAddressesAreLeft) {
  const Files files = with(kMachine, {{"/proc/self/statm", "1000 200 50 5 0 90 0\n"},
                                      {"/proc/self/status", "Name:\trootdk\nThreads:\t3\n"}});
  const AddressSpace space = {.limit = 100 << 20, .page = 4096, .stack = 8 << 20};
  const std::int64_t left = (100 << 20) - 1000 * 4096;
  EXPECT_EQ(files.free(space).bytes, left);
  EXPECT_EQ(files.free(space).limit, "ulimit -v");
  EXPECT_EQ(files.free(space, 3).bytes, left);  // these run already
  EXPECT_EQ(files.free(space, 5).bytes, left - 2 * (8 << 20));
  EXPECT_EQ(files.free(space, 1024).bytes, 0);
  EXPECT_EQ(files.free(space, std::numeric_limits<int>::max()).bytes, 0);
  EXPECT_EQ(files.free({.limit = kMost}).bytes, kAvailable);
  EXPECT_EQ(files.free({.limit = 0}).bytes, 0);
  EXPECT_EQ(with(files, {{"/proc/self/statm", "99999999999999999999 1\n"}}).free(space).bytes, 0);
  EXPECT_EQ(with(files, {{"/proc/self/statm", "no\n"}}).free(space).bytes, kAvailable);
}

// Any text in any of the files: a number between nothing and what the machine says, or the largest.
RC_GTEST_PROP(FreeMemory, HostileTextsAreOnlyText, ()) {
  Files files = kV2;
  const auto piece = rc::gen::element<std::string>(
      "0::", "/", "/a", "..", "memory", ":", "\n", " ", " - ", "cgroup2", "cgroup", "-1", "18446744073709551616", "7",
      "max", " kB", "MemAvailable:", "Threads:", "active_file ", std::string(1, '\0'), "\xff", "9223372036854775807");
  const auto text =
      rc::gen::map(rc::gen::container<std::vector<std::string>>(piece), [](const std::vector<std::string>& pieces) {
        std::string all;
        for (const std::string& one : pieces) all += one;
        return all;
      });
  for (const std::string& path :
       {std::string("/proc/meminfo"), std::string("/proc/self/cgroup"), std::string("/proc/self/mountinfo"),
        std::string("/proc/self/statm"), std::string("/proc/self/status"), kThis + "memory.max",
        kThis + "memory.current", kThis + "memory.stat", kJobs + "memory.max"})
    if (*rc::gen::arbitrary<bool>()) files[path] = *text;
  const FreeMemory free = files.free({.limit = *rc::gen::inRange<std::int64_t>(0, kMost)}, *rc::gen::inRange(1, 2000));
  RC_ASSERT(free.bytes >= 0);
}

TEST(FreeMemory, OfThisMachineIsSomething) {
  const FreeMemory here = rootdk::free_memory();
  EXPECT_GT(here.bytes, 1 << 20);
  if (here.bytes == kMost) GTEST_SKIP() << "nothing is known of the memory here";
  EXPECT_LT(here.bytes, std::int64_t{1} << 50);

  std::int64_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  rlimit before;
  ASSERT_EQ(getrlimit(RLIMIT_AS, &before), 0);
  const rlimit tight = {static_cast<rlim_t>(pages * sysconf(_SC_PAGESIZE) + (64 << 20)), before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_AS, &tight), 0);
  const FreeMemory limited = rootdk::free_memory();
  ASSERT_EQ(setrlimit(RLIMIT_AS, &before), 0);
  EXPECT_EQ(limited.limit, "ulimit -v");
  EXPECT_LE(limited.bytes, 64 << 20);
  EXPECT_GE(limited.bytes, 48 << 20);
}

TEST(WantMemory, SaysBothFigures) {
  const auto said = [](const MemoryNeed& need, const FreeMemory& free) {
    return test::message_of([&] { want_memory(need, free); }, ErrorCode::kOutOfMemory);
  };
  EXPECT_EQ(said({312'000'000'000, 1, "layers", "100000"}, {21'449'999'999, ""}),
            "layers: 100000 would take 313 GB of memory, but 21.4 GB are free");
  EXPECT_EQ(said({1 << 20, 1, {}, {}}, {999, "ulimit -v"}),
            "this would take 9.44 MB of memory, but 999 bytes are free (ulimit -v)");
  EXPECT_EQ(said({kMost, 1, "keys", "9"}, {0, "the cgroup's limit"}),
            "keys: 9 would take 9.23 EB of memory, but 0 bytes are free (the cgroup's limit)");
  // Never the same figure twice, however near they are.
  EXPECT_EQ(said({5'000'000'000 - (8 << 20), 1, "a", "b"}, {4'999'999'999, ""}),
            "a: b would take 5 GB of memory, but 4.99 GB are free");
  EXPECT_EQ(said({999'999'999, 1, "a", "b"}, {999'999'999, ""}),
            "a: b would take 1.01 GB of memory, but 999 MB are free");
  EXPECT_NO_THROW(want_memory({kMost, 1, {}, {}}, {kMost, ""}));
  EXPECT_NO_THROW(want_memory({1000, 1, {}, {}}, {(8 << 20) + 1000, ""}));
  EXPECT_EQ(said({1001, 1, {}, {}}, {(8 << 20) + 1000, ""}).substr(0, 15), "this would take");
}

// Told from a wrong argument: on a larger machine the same call would run. Python raises MemoryError.
TEST(WantMemory, IsAnErrorOfItsOwn) {
  try {
    want_memory({1000, 1, "keys\x1b", "9"}, {0, ""});
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kOutOfMemory);
    EXPECT_EQ(std::string(error.what()).find('\x1b'), std::string::npos) << "nothing steers a terminal";
  }
}

TEST(WantMemory, NumbersOfBytesDoNotRunOver) {
  EXPECT_EQ(saturated(0), 0);
  EXPECT_EQ(saturated(4096.7), 4096);
  EXPECT_EQ(saturated(0x1p62), std::int64_t{1} << 62);
  for (const double huge : {0x1p63, 1e300, HUGE_VAL, std::nan("")}) EXPECT_EQ(saturated(huge), kMost);
}

}  // namespace
}  // namespace rootdk::base
