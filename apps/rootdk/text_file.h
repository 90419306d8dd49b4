// A small file, whole.
#pragma once

#include <cstddef>
#include <filesystem>
#include <string>

namespace rootdk::app {

/// Throws Error for what cannot be read, or is larger than `most` bytes.
std::string read_text_file(const std::filesystem::path& path, std::size_t most = std::size_t{64} << 20);

}  // namespace rootdk::app
