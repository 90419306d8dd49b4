// Hostile files, built where they are needed: each with the one message it must be refused with. They also seed the
// fuzzers.
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "support/files.h"

namespace rootdk::test {

struct Attack {
  std::string name;
  std::string opened;   ///< what is opened, in the directory; empty: the directory
  std::string message;  ///< all of it; HERE stands for the directory
  std::function<void(const std::filesystem::path&)> build;
  bool inflates = false;  ///< meant for a rootdk with zlib
};

/// One file; the message follows its name.
inline Attack in_file(std::string name, std::string file, std::string bytes, std::string_view message) {
  return {std::move(name), file, "HERE/" + file + ": " + std::string(message),
          [file, bytes = std::move(bytes)](const std::filesystem::path& here) { write_file(here / file, bytes); }};
}

std::vector<Attack> safetensors_attacks();
std::vector<Attack> gguf_attacks();
std::vector<Attack> npy_attacks();
std::vector<Attack> directory_attacks();

}  // namespace rootdk::test
