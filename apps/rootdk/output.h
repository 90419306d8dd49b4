// Where results go. Nothing is ever left half-written under its final name, and a full disk is an error, not a
// surprise.
#pragma once

#include <filesystem>
#include <string_view>
#include <utility>
#include <vector>

namespace rootdk::app {

/// Writes all of it to standard output (a page: into the answer), or throws Error.
void print(std::string_view text);

/// A temporary file beside the final name, then a rename. What is there already stays as it was if anything fails. A
/// path that names something other than a regular file (a pipe, a device) is written to directly.
void write_file(const std::filesystem::path& path, std::string_view bytes);

/// A folder, and those above it. Fine if it is there; what was made for nothing, because nothing came to lie in it,
/// goes again.
class Folder {
 public:
  Folder() = default;
  explicit Folder(const std::filesystem::path& path);
  ~Folder() { tidy(); }
  Folder(Folder&& other) noexcept : made_(std::exchange(other.made_, {})) {}
  Folder& operator=(Folder&& other) noexcept {
    std::swap(made_, other.made_);
    return *this;
  }

 private:
  void tidy() noexcept;

  std::vector<std::filesystem::path> made_;  ///< the outermost first
};

}  // namespace rootdk::app
