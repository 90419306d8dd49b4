// Writing safetensors. Reading them is Checkpoint::open.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "rootdk/checkpoint/encoding.h"
#include "rootdk/export.h"

namespace rootdk::checkpoint {

/// A tensor to write; the numbers are borrowed, row-major.
struct NewTensor {
  std::string name;
  Encoding encoding = Encoding::kF32;
  std::vector<std::int64_t> shape;
  std::span<const std::byte> data;
};

template <class T>
NewTensor new_tensor(std::string name, std::vector<std::int64_t> shape, std::span<const T> values) {
  return {std::move(name), kEncodingOf<T>, std::move(shape), std::as_bytes(values)};
}

/// All or nothing: the file is written beside `path` under another name, brought to the disk, then renamed. On any
/// failure, a full disk included, `path` is what it was and the other file is gone. The same input gives the same
/// bytes.
ROOTDK_API void write_safetensors(const std::filesystem::path& path, std::span<const NewTensor> tensors,
                                  const std::map<std::string, std::string>& metadata = {});

}  // namespace rootdk::checkpoint
