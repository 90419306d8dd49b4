// A file open for reading: mapped for headers and views, read in pieces for numbers. Or bytes in memory, for fuzzing.
#pragma once

#include <fmt/format.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "base/refuse.h"

namespace rootdk::checkpoint {

using base::refuse;

class Source {
 public:
  /// Refuses what is not a regular file. A FIFO does not block.
  static std::shared_ptr<const Source> open(const std::filesystem::path& path);
  /// Opens `real`, which must not be a link, and calls it `path`.
  static std::shared_ptr<const Source> open_real(const std::filesystem::path& path, const std::filesystem::path& real);
  /// The bytes are borrowed.
  static std::shared_ptr<const Source> memory(std::string name, std::span<const std::byte> bytes);

  Source(const Source&) = delete;
  Source& operator=(const Source&) = delete;
  ~Source();

  const std::filesystem::path& path() const { return path_; }
  const std::string& name() const { return name_; }  ///< the path, fit for messages
  std::uint64_t size() const { return bytes_.size(); }
  std::span<const std::byte> bytes() const { return bytes_; }
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
  void open(const std::filesystem::path& real, int flags);

  std::filesystem::path path_;
  std::string name_;
  std::span<const std::byte> bytes_;
  int file_ = -1;
};

}  // namespace rootdk::checkpoint
