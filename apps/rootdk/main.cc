// The command line: picks a subcommand; each lives in a file of its own. Bad input gets one line and exit status 2.
#include <fmt/format.h>

#include <cstdio>
#include <exception>
#include <string_view>

#include "demo.h"
#include "rootdk/version.h"

namespace {

constexpr std::string_view kUsage =
    "rootdk: scaled dot-product attention that can be seen into\n"
    "\n"
    "  rootdk demo       attention on made-up data under the scales 1, 1/sqrt(d_k) and 1/d_k\n"
    "  rootdk --version\n"
    "  rootdk --help\n";

}  // namespace

int main(int argc, char** argv) {
  const std::string_view verb = argc > 1 ? argv[1] : "--help";
  try {
    if (argc > 2) {
      fmt::print(stderr, "rootdk {}: takes no arguments, but '{}' was given\n", verb, argv[2]);
      return 2;
    }
    if (verb == "demo") return rootdk::app::run_demo();
    if (verb == "--version") {
      fmt::print("rootdk {}\n", ROOTDK_VERSION);
      return 0;
    }
    if (verb == "--help" || verb == "-h") {
      fmt::print("{}", kUsage);
      return 0;
    }
    fmt::print(stderr, "rootdk: no subcommand '{}'; try rootdk --help\n", verb);
  } catch (const std::exception& error) {
    fmt::print(stderr, "rootdk {}: {}\n", verb, error.what());
  }
  return 2;
}
