// Every attack of tests/attacks/ is refused with its one message, and costs no more memory than the file has bytes.
#include <gtest/gtest.h>

#include <fstream>
#include <string>

#include "attacks/attack.h"
#include "checkpoint/byte_reader.h"
#include "rootdk/checkpoint/checkpoint.h"
#include "support/message.h"

namespace rootdk::checkpoint {
namespace {

namespace fs = std::filesystem;

// In bytes; 0 where it cannot be known.
std::int64_t peak_memory() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);)
    if (line.starts_with("VmHWM:")) return std::stoll(line.substr(6)) * 1024;
  return 0;
}

void check(const std::vector<test::Attack>& attacks) {
  ASSERT_FALSE(attacks.empty());
  for (const test::Attack& attack : attacks) {
    if (attack.inflates && !can_inflate()) continue;
    SCOPED_TRACE(attack.name);
    const test::TemporaryDirectory directory;
    attack.build(directory.path());
    const std::int64_t before = peak_memory();
    std::string want = attack.message;
    for (std::size_t at = 0; (at = want.find("HERE", at)) != std::string::npos;)
      want.replace(at, 4, directory.path().string());
    for (const bool map : {true, false}) {
      const std::string got = test::message_of([&] {
        if (attack.opened == "config") Checkpoint::open(directory.path(), {.map = map}).config();
        else Checkpoint::open(attack.opened.empty() ? directory.path() : directory / attack.opened, {.map = map});
      });
      EXPECT_EQ(got, want) << (map ? "mapped" : "read");
    }
    // The files are of a few 100 KiB at most; what is more comes from the library's first use and from sanitizers.
    EXPECT_LE(peak_memory() - before, 16 << 20);
  }
}

TEST(Attacks, Safetensors) { check(test::safetensors_attacks()); }
TEST(Attacks, Gguf) { check(test::gguf_attacks()); }
TEST(Attacks, Npy) { check(test::npy_attacks()); }
TEST(Attacks, Directory) { check(test::directory_attacks()); }

}  // namespace
}  // namespace rootdk::checkpoint
