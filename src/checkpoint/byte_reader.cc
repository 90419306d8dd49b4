// Stored bytes by reading at an offset; deflated ones by inflate.cc, or by no_inflate.cc where there is no zlib.
#include "checkpoint/byte_reader.h"

namespace rootdk::checkpoint {

namespace {

class StoredReader final : public ByteReader {
 public:
  StoredReader(const Source& source, std::uint64_t offset) : source_(source), offset_(offset) {}
  void read(std::uint64_t position, std::span<std::byte> out) override { source_.read(offset_ + position, out); }

 private:
  const Source& source_;
  const std::uint64_t offset_;
};

}  // namespace

std::unique_ptr<ByteReader> reader_of(const Source& source, const TensorInfo& info, const Deflated* deflated) {
  if (deflated != nullptr) return inflating_reader(source, info, *deflated);
  return std::make_unique<StoredReader>(source, info.offset);
}

}  // namespace rootdk::checkpoint
