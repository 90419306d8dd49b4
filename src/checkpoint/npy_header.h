// The header of an .npy: "\x93NUMPY", version, length, and a Python dictionary
//   {'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/source.h"
#include "rootdk/checkpoint/tensor_info.h"

namespace rootdk::checkpoint {

/// NumPy stays below 10,000; version 1 cannot say more.
inline constexpr std::uint64_t kMaxNpyHeaderBytes = 65535;
/// Magic, version, and a length of at most four bytes.
inline constexpr std::uint64_t kNpyPreludeBytes = 12;

struct NpyHeader {
  TensorInfo info;                 ///< without name, file and offset
  std::uint64_t header_bytes = 0;  ///< where the numbers begin
};

/// `begin` is the first bytes of the .npy, at least kNpyPreludeBytes + kMaxNpyHeaderBytes unless it is shorter as a
/// whole; they stand at byte `offset` of the source, or are unpacked from there. `total` is how many bytes the .npy
/// has: no more, no less than header and numbers.
NpyHeader parse_npy_header(const Source& source, std::uint64_t offset, std::string_view begin, std::uint64_t total);

/// A whole header of version 1.0 for row-major numbers. `descr` is "<f4" or the like.
std::string npy_header(std::string_view descr, std::span<const std::int64_t> shape);

}  // namespace rootdk::checkpoint
