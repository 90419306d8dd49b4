// Just enough of zip for .npz: the list of entries, stored or deflated, with or without zip64.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "checkpoint/source.h"

namespace rootdk::checkpoint {

struct ZipEntry {
  std::string name;
  std::uint64_t listed_at = 0;  ///< where the central directory has it
  std::uint64_t offset = 0;     ///< of its bytes
  std::uint64_t packed_bytes = 0;
  std::uint64_t bytes = 0;  ///< unpacked
  std::uint32_t crc = 0;
  bool deflated = false;
};

/// Everything in it lies within the file; no two entries share a byte or a name, and none claims more than deflate can
/// pack.
std::vector<ZipEntry> read_zip(const Source& source);

}  // namespace rootdk::checkpoint
