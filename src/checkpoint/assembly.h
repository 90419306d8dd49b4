// Puts a Checkpoint together from files, or, for fuzzing, from memory.
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/contents.h"
#include "rootdk/checkpoint/checkpoint.h"

namespace rootdk::checkpoint {

struct Checkpoint::Data {
  Format format = Format::kSafetensors;
  std::filesystem::path directory;
  OpenOptions options;
  std::map<std::string, std::shared_ptr<const Source>> elsewhere;  // by name
  std::vector<std::shared_ptr<const Source>> sources;
  std::vector<std::filesystem::path> files;  // of the sources
  std::vector<TensorInfo> tensors;
  std::vector<std::optional<Deflated>> deflated;  // one for each tensor
  std::vector<std::size_t> by_name;
  std::vector<MetadataEntry> metadata;

  std::shared_ptr<const Source> file(const std::string& name) const;  // of the directory, wherever it lies
  const TensorInfo* find(std::string_view name) const;
  const Deflated* packing(const TensorInfo& tensor) const;  // null where it is not packed
};

class Assembly {
 public:
  static Checkpoint open(const std::filesystem::path& path, const OpenOptions& options,
                         std::vector<Elsewhere> elsewhere);
  static Checkpoint open_memory(std::string name, std::span<const std::byte> bytes, Format format);

 private:
  std::size_t add_file(std::shared_ptr<const Source> source);
  void add(std::size_t file, StoredTensor tensor);
  void add_all(std::shared_ptr<const Source> source, Format format);
  void add_indexed(const Source& index);
  Checkpoint finish();

  std::shared_ptr<Checkpoint::Data> data_ = std::make_shared<Checkpoint::Data>();
};

}  // namespace rootdk::checkpoint
