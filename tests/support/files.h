// Files made by hand: bytes put one behind the other, and a directory that goes away with everything in it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>

namespace rootdk::test {

class Bytes {
 public:
  template <class T>
  Bytes& number(T value) {  // little-endian, as the machine is
    return raw({reinterpret_cast<const char*>(&value), sizeof(T)});
  }
  template <class T>
  Bytes& swapped(T value) {
    std::string bytes(reinterpret_cast<const char*>(&value), sizeof(T));
    std::reverse(bytes.begin(), bytes.end());
    return raw(bytes);
  }
  Bytes& raw(std::string_view bytes) {
    text_ += bytes;
    return *this;
  }
  Bytes& zeros(std::size_t count) {
    text_.append(count, '\0');
    return *this;
  }
  Bytes& pad_to(std::size_t multiple) { return zeros((multiple - text_.size() % multiple) % multiple); }

  std::size_t size() const { return text_.size(); }
  const std::string& text() const { return text_; }

 private:
  std::string text_;
};

template <class T>
std::string bytes_of(std::span<const T> values) {
  return {reinterpret_cast<const char*>(values.data()), values.size_bytes()};
}

inline void write_file(const std::filesystem::path& path, std::string_view bytes) {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  file.flush();
  if (!file) throw std::runtime_error("cannot write " + path.string());
}

inline std::string read_file(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw std::runtime_error("cannot read " + path.string());
  return {std::istreambuf_iterator<char>(file), {}};
}

/// Empty where there is no such file.
inline std::string read_if_there(const std::filesystem::path& path) {
  return std::filesystem::exists(path) ? read_file(path) : std::string();
}

class TemporaryDirectory {
 public:
  TemporaryDirectory() {
    std::string name = (std::filesystem::temp_directory_path() / "rootdk-XXXXXX").string();
    if (mkdtemp(name.data()) == nullptr) throw std::runtime_error("cannot make " + name);
    path_ = name;
  }
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;
  ~TemporaryDirectory() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path operator/(std::string_view name) const { return path_ / name; }
  /// In it, hidden ones included.
  std::size_t files() const {
    return static_cast<std::size_t>(
        std::distance(std::filesystem::directory_iterator(path_), std::filesystem::directory_iterator()));
  }

 private:
  std::filesystem::path path_;
};

}  // namespace rootdk::test
