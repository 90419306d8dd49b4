// A file that appears whole or not at all: written under another name in the same directory, brought to the disk,
// renamed. A link stays one, and its end is the file; a pipe or a device stays what it is, and is written to.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>

namespace rootdk::checkpoint {

class AtomicFile {
 public:
  explicit AtomicFile(const std::filesystem::path& path);
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;
  /// Without commit() nothing remains.
  ~AtomicFile();

  void append(std::span<const std::byte> bytes);
  void append(std::string_view text) { append(std::as_bytes(std::span<const char>(text))); }
  void commit();

 private:
  [[noreturn]] void fail(int error) const;
  bool is_direct() const { return temporary_.empty(); }

  std::filesystem::path name_;       ///< as it was given
  std::filesystem::path path_;       ///< where that leads
  std::filesystem::path temporary_;  ///< empty for a pipe or a device
  int file_ = -1;
  std::uint64_t size_ = 0;
};

}  // namespace rootdk::checkpoint
