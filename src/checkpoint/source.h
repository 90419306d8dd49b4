// A file open for reading: mapped for headers and views where that can be, read in pieces for numbers. Or bytes in
// memory, for fuzzing.
#pragma once

#include <fmt/format.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/refuse.h"
#include "rootdk/checkpoint/checkpoint.h"

namespace rootdk::checkpoint {

using base::refuse;

class Source {
 public:
  /// Refuses what is not a regular file. A FIFO does not block. Mapped, if that is wanted and can be: some file systems
  /// do not map files, and what is larger than memory has addresses cannot be.
  static std::shared_ptr<const Source> open(const std::filesystem::path& path, const OpenOptions& options);
  /// Opens `real`, which must not be a link, and calls it `path`.
  static std::shared_ptr<const Source> open_real(const std::filesystem::path& path, const std::filesystem::path& real,
                                                 const OpenOptions& options);
  /// The bytes are borrowed.
  static std::shared_ptr<const Source> memory(std::string name, std::span<const std::byte> bytes);
  /// Of a file that is not here: `path` is what it is called.
  static std::shared_ptr<const Source> elsewhere(const std::filesystem::path& path, Elsewhere file);

  Source(const Source&) = delete;
  Source& operator=(const Source&) = delete;
  ~Source();

  const std::filesystem::path& path() const { return path_; }
  const std::string& name() const { return name_; }  ///< the path, fit for messages
  std::uint64_t size() const { return size_; }
  /// A part of it, which lives as long as this: in the mapped file, or read and kept. For headers, and for what
  /// somebody wants to look at in place.
  std::span<const std::byte> bytes(std::uint64_t offset, std::uint64_t length) const;
  std::string_view text(std::uint64_t offset, std::uint64_t length) const;

  /// Copies from offset on; refuses when the file has become shorter since it was opened.
  void read(std::uint64_t offset, std::span<std::byte> out) const;

  /// "FILE: byte OFFSET: …"
  template <class... Args>
  [[noreturn]] void refuse_at(std::uint64_t offset, fmt::format_string<Args...> format, Args&&... args) const {
    refuse("{}: byte {}: {}", name_, offset, fmt::format(format, std::forward<Args>(args)...));
  }

 private:
  Source(std::filesystem::path path, std::string name) : path_(std::move(path)), name_(std::move(name)) {}
  void open(const std::filesystem::path& real, int flags, bool map);
  std::span<const std::byte> kept(std::uint64_t offset, std::uint64_t length) const;

  std::filesystem::path path_;
  std::string name_;
  std::uint64_t size_ = 0;
  std::span<const std::byte> bytes_;  ///< all of it, where it is mapped or in memory
  int file_ = -1;
  bool elsewhere_ = false;                                               ///< pieces_ is all there is
  mutable std::mutex mutex_;                                             ///< of what follows
  mutable std::multimap<std::uint64_t, std::vector<std::byte>> pieces_;  ///< what was read and is kept, by offset
};

}  // namespace rootdk::checkpoint
