// Where a name leads to, whether or not something is there.
#pragma once

#include <filesystem>
#include <system_error>

namespace rootdk::base {

/// Links are followed, also one whose end is not there yet: a file written under its name would appear at that end.
inline std::filesystem::path real_path(const std::filesystem::path& name) {
  constexpr int kMostLinks = 40;  // as Linux follows
  std::error_code error;
  std::filesystem::path path = std::filesystem::absolute(name, error);
  for (int links = 0; links < kMostLinks; ++links) {
    if (!std::filesystem::is_symlink(std::filesystem::symlink_status(path, error))) break;
    const std::filesystem::path target = std::filesystem::read_symlink(path, error);
    if (error) break;
    path = path.parent_path() / target;
  }
  std::filesystem::path real = std::filesystem::weakly_canonical(path, error);
  return error || real.empty() ? name : real;
}

}  // namespace rootdk::base
