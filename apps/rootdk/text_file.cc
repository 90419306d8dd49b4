// Reads in pieces, so that a file which is larger than it may be is refused before it is all in memory.
#include "text_file.h"

#include <cerrno>
#include <cstdio>
#include <memory>
#include <system_error>

#include "base/refuse.h"

namespace rootdk::app {

std::string read_text_file(const std::filesystem::path& path, std::size_t most) {
  const auto fail = [&](int error) { base::refuse("{}: {}", path.string(), std::generic_category().message(error)); };
  std::error_code error;
  if (std::filesystem::is_directory(path, error)) fail(EISDIR);
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path.c_str(), "rb"), &std::fclose);
  if (!file) fail(errno);
  std::string text;
  char piece[1 << 16];
  while (const std::size_t got = std::fread(piece, 1, sizeof piece, file.get())) {
    text.append(piece, got);
    if (text.size() > most) base::refuse("{}: more than {} bytes", path.string(), most);
  }
  if (std::ferror(file.get()) != 0) fail(EIO);
  return text;
}

}  // namespace rootdk::app
