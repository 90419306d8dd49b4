// A tensor's bytes, whether they lie in the file as they are or have to be unpacked.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "checkpoint/contents.h"
#include "checkpoint/source.h"

namespace rootdk::checkpoint {

class ByteReader {
 public:
  virtual ~ByteReader() = default;
  /// Bytes from `position` of the tensor on. Positions only ever grow, and parts do not overlap.
  virtual void read(std::uint64_t position, std::span<std::byte> out) = 0;
};

/// `deflated` is null where the bytes lie there as they are.
std::unique_ptr<ByteReader> reader_of(const Source& source, const TensorInfo& info, const Deflated* deflated);

/// Unpacks; `position` counts from behind `deflated.header_bytes`. Refuses where rootdk was built without zlib.
std::unique_ptr<ByteReader> inflating_reader(const Source& source, const TensorInfo& info, const Deflated& deflated);

/// Whether rootdk was built with zlib.
bool can_inflate();

}  // namespace rootdk::checkpoint
