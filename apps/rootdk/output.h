// Where results go. Nothing is ever left half-written under its final name, and a full disk is an error, not a surprise.
#pragma once

#include <filesystem>
#include <string_view>

namespace rootdk::app {

/// Writes all of it to standard output, or throws Error.
void print(std::string_view text);

/// A temporary file beside the final name, then a rename. What is there already stays as it was if anything fails. A path that
/// names something other than a regular file (a pipe, a device) is written to directly.
void write_file(const std::filesystem::path& path, std::string_view bytes);

/// Makes a folder, and those above it. Fine if it is there.
void make_folder(const std::filesystem::path& path);

}  // namespace rootdk::app
