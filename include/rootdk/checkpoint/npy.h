// NumPy's .npy: whole arrays in and out. Parts of one, or the arrays of an .npz, are Checkpoint::open's business.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <vector>

#include "rootdk/export.h"

namespace rootdk::checkpoint {

/// Row-major, whatever the file had.
template <class T>
struct NpyArray {
  std::vector<std::int64_t> shape;
  std::vector<T> values;
};

/// Any of f2 … f8, i1 … i8, u1 … u8 and b1, in either byte order, C or Fortran order; rounds to nearest.
ROOTDK_API NpyArray<float> read_npy_f32(const std::filesystem::path& path);
ROOTDK_API NpyArray<double> read_npy_f64(const std::filesystem::path& path);
/// Whole numbers and booleans only; never rounds.
ROOTDK_API NpyArray<std::int64_t> read_npy_i64(const std::filesystem::path& path);

/// Version 1.0, C order. All or nothing, as write_safetensors.
ROOTDK_API void write_npy(const std::filesystem::path& path, std::span<const std::int64_t> shape,
                          std::span<const float> values);
ROOTDK_API void write_npy(const std::filesystem::path& path, std::span<const std::int64_t> shape,
                          std::span<const double> values);
ROOTDK_API void write_npy(const std::filesystem::path& path, std::span<const std::int64_t> shape,
                          std::span<const std::int64_t> values);

}  // namespace rootdk::checkpoint
