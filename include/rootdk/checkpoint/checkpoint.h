// The weights of a model, whatever they came in: safetensors (one file, shards, an index), GGUF, .npz, .npy.
//
// Files are taken as hostile. Opening reads headers only, checks all of it, every size and offset included, and refuses
// with one message that names the file, the byte and what is wrong. Memory grows with the headers and with what is
// asked for, never with a number that a file claims.
//
// A file may change while it is open; what is promised then:
// - read_f32, read_f64 and read_i64 go through read(2) and refuse when the file has become shorter;
// - view and bytes are mapped memory, and so are headers while a file is being opened and arrays in its metadata:
// touching a
//   part that has been cut off ends in SIGBUS, as with any mapped file (not with OpenOptions::map off);
// - numbers may be a mixture of old and new, but nothing outside the file's own bytes is ever read.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "rootdk/checkpoint/encoding.h"
#include "rootdk/checkpoint/metadata.h"
#include "rootdk/checkpoint/tensor_info.h"
#include "rootdk/export.h"

namespace rootdk::checkpoint {

enum class Format : std::uint8_t { kSafetensors, kGguf, kNpy, kNpz };

struct OpenOptions {
  /// Whether shards may be symbolic links that lead out of their directory. Links into the blobs of a Hugging Face
  /// cache are always followed, and so is the path you give.
  bool follow_links = false;
  /// Whether files are mapped where they can be. What is not mapped is read: headers once and kept, as is what bytes()
  /// and view() show.
  bool map = true;
};

/// A file of a checkpoint's directory that lies on another machine, and what of it was fetched. Reading anything else
/// of it is refused.
struct Elsewhere {
  struct Run {
    std::uint64_t offset = 0;
    std::vector<std::byte> bytes;
  };
  std::string name;            ///< in that directory
  std::uint64_t size = 0;      ///< of the whole file
  std::vector<Run> runs = {};  ///< a shard's header; the whole of an index or a config.json; tensors that will be read
};

/// A handle; copies share the files. Everything is const and may be called from several threads.
class ROOTDK_API Checkpoint {
 public:
  /// `path` is a .safetensors, .gguf, .npz or .npy file, a *.safetensors.index.json, or a directory. Of a directory the
  /// first of these is taken: model.safetensors.index.json, the only *.safetensors.index.json, model.safetensors, the
  /// shards
  /// *-00001-of-0000N.safetensors, the only *.safetensors, the shards *-00001-of-0000N.gguf, the only *.gguf, the only
  /// *.npz. A file without one of these endings is known by its first bytes. One shard by itself is one file.
  static Checkpoint open(const std::filesystem::path& path, const OpenOptions& options = {});
  /// The same of a directory or an index whose files lie on several machines: what is `elsewhere` is as if it were
  /// there, and taken before a file of that name that is.
  static Checkpoint open(const std::filesystem::path& path, const OpenOptions& options,
                         std::vector<Elsewhere> elsewhere);

  Format format() const;

  // What is returned by reference, pointer or span lives as long as a copy of this object, so a temporary gives none.
  const std::vector<std::filesystem::path>& files() const&;
  /// By file, then by place in it. With an index, those that it names.
  const std::vector<TensorInfo>& tensors() const&;
  const TensorInfo* find(std::string_view name) const&;  ///< null if there is none
  const TensorInfo& at(std::string_view name) const&;    ///< refuses if there is none
  /// Of the first file.
  const std::vector<MetadataEntry>& metadata() const&;
  const MetadataValue* find_metadata(std::string_view key) const&;

  /// The text of config.json beside it, if there is one.
  std::optional<std::string> config() const;

  /// Rows first_row … first_row + rows − 1, row-major, into `out`, which must have just that size. Rounds to nearest.
  void read_f32(std::string_view tensor, std::int64_t first_row, std::int64_t rows, std::span<float> out) const;
  void read_f64(std::string_view tensor, std::int64_t first_row, std::int64_t rows, std::span<double> out) const;
  /// Whole numbers and booleans only; never rounds.
  void read_i64(std::string_view tensor, std::int64_t first_row, std::int64_t rows, std::span<std::int64_t> out) const;

  /// All rows.
  std::vector<float> read_f32(std::string_view tensor) const;
  std::vector<double> read_f64(std::string_view tensor) const;

  /// Its bytes in the mapped file. Refuses what is compressed.
  std::span<const std::byte> bytes(std::string_view tensor) const&;

  /// Its numbers in the mapped file, in the file's order of axes. Refuses another type, byte order or an odd alignment.
  template <class T>
  std::span<const T> view(std::string_view tensor) const& {
    const std::span<const std::byte> data = bytes_of(tensor, kEncodingOf<T>, alignof(T));
    return {reinterpret_cast<const T*>(data.data()), data.size() / sizeof(T)};
  }

  const std::vector<std::filesystem::path>& files() const&& = delete;
  const std::vector<TensorInfo>& tensors() const&& = delete;
  const TensorInfo* find(std::string_view name) const&& = delete;
  const TensorInfo& at(std::string_view name) const&& = delete;
  const std::vector<MetadataEntry>& metadata() const&& = delete;
  const MetadataValue* find_metadata(std::string_view key) const&& = delete;
  std::span<const std::byte> bytes(std::string_view tensor) const&& = delete;
  template <class T>
  std::span<const T> view(std::string_view tensor) const&& = delete;

 private:
  struct Data;
  friend class Assembly;
  explicit Checkpoint(std::shared_ptr<const Data> data);
  std::span<const std::byte> bytes_of(std::string_view tensor, Encoding encoding, std::size_t alignment) const;

  std::shared_ptr<const Data> data_;
};

}  // namespace rootdk::checkpoint
