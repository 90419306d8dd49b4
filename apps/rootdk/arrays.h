// The user's own arrays: .npy files in and out.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "rootdk/checkpoint/checkpoint.h"
#include "rootdk/tensor.h"

namespace rootdk::app {

/// Row-major numbers with a shape; f32 or f64.
struct Array {
  DType dtype = DType::kF32;
  std::vector<std::int64_t> shape;
  std::vector<std::byte> bytes;

  std::int64_t count() const;
  double at(std::int64_t i) const;

  /// As [batch, heads, length, dim]: leading axes that are missing have size 1. Refuses fewer than 2 axes and more than
  /// 4; `name` is what the message calls it.
  ConstTensor view(const std::string& name) const;
};

Array make_array(DType dtype, std::vector<std::int64_t> shape);

enum class Precision : std::uint8_t {
  kAsStored,  ///< f64 stays f64; all else (halves, whole numbers) becomes f32
  kF32,
};

/// An .npy of which only the header was read.
class ArrayFile {
 public:
  explicit ArrayFile(const std::filesystem::path& path, Precision precision = Precision::kAsStored);

  const std::vector<std::int64_t>& shape() const { return info().shape; }
  DType dtype() const { return dtype_; }
  double bytes() const;  ///< that read() takes
  Array read() const;

  /// What Array::view will be, for those who look at shapes: its numbers are not there.
  ConstTensor view(const std::string& name) const;

 private:
  const checkpoint::TensorInfo& info() const { return file_.tensors().front(); }

  checkpoint::Checkpoint file_;
  DType dtype_ = DType::kF32;
};

std::string npy_bytes(const Array& array);

}  // namespace rootdk::app
