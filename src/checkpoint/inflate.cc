// Unpacking a deflated entry of an .npz with zlib, a buffer at a time.
#include <zlib.h>

#include <algorithm>
#include <array>

#include "checkpoint/byte_reader.h"
#include "checkpoint/text.h"

namespace rootdk::checkpoint {

namespace {

class InflatingReader final : public ByteReader {
 public:
  InflatingReader(const Source& source, const TensorInfo& info, const Deflated& deflated)
      : source_(source), info_(info), deflated_(deflated), total_(deflated.header_bytes + info.bytes) {
    // Raw deflate, as zip has it: no header of zlib's own.
    if (::inflateInit2(&stream_, -MAX_WBITS) != Z_OK) throw Error(ErrorCode::kOutOfMemory, "out of memory");
  }
  InflatingReader(const InflatingReader&) = delete;
  InflatingReader& operator=(const InflatingReader&) = delete;
  ~InflatingReader() override { ::inflateEnd(&stream_); }

  void read(std::uint64_t position, std::span<std::byte> out) override {
    position += deflated_.header_bytes;
    std::array<std::byte, 4096> unwanted;
    while (done_ < position)
      unpack(std::span(unwanted).first(std::min<std::uint64_t>(unwanted.size(), position - done_)));
    unpack(out);
    if (done_ == total_ && crc_ != deflated_.crc)
      source_.refuse_at(info_.offset, "{} is damaged: its checksum is {:08x}, but {:08x} is wanted",
                        in_quotes(info_.name), crc_, deflated_.crc);
  }

 private:
  void unpack(std::span<std::byte> out) {
    while (!out.empty()) {
      if (stream_.avail_in == 0) refill();
      const auto room = static_cast<uInt>(std::min<std::size_t>(out.size(), 1u << 30));
      stream_.next_out = reinterpret_cast<Bytef*>(out.data());
      stream_.avail_out = room;
      const int status = ::inflate(&stream_, Z_NO_FLUSH);
      const std::size_t got = room - stream_.avail_out;
      crc_ =
          static_cast<std::uint32_t>(::crc32(crc_, reinterpret_cast<const Bytef*>(out.data()), static_cast<uInt>(got)));
      done_ += got;
      out = out.subspan(got);
      if (status == Z_STREAM_END && out.empty()) return;
      if (status != Z_OK)  // Z_BUF_ERROR: nothing is left to unpack
        source_.refuse_at(info_.offset + taken_ - stream_.avail_in, "{} cannot be unpacked: {} of {} bytes were there",
                          in_quotes(info_.name), done_, total_);
    }
  }

  void refill() {
    const auto part = std::min<std::uint64_t>(buffer_.size(), deflated_.packed_bytes - taken_);
    source_.read(info_.offset + taken_, std::as_writable_bytes(std::span(buffer_)).first(part));
    taken_ += part;
    stream_.next_in = buffer_.data();
    stream_.avail_in = static_cast<uInt>(part);
  }

  const Source& source_;
  const TensorInfo& info_;
  const Deflated deflated_;
  const std::uint64_t total_;  // bytes, unpacked
  std::uint64_t done_ = 0;     // of those
  std::uint64_t taken_ = 0;    // packed bytes read so far
  std::uint32_t crc_ = 0;
  z_stream stream_ = {};
  std::array<Bytef, 16384> buffer_;
};

}  // namespace

bool can_inflate() { return true; }

std::unique_ptr<ByteReader> inflating_reader(const Source& source, const TensorInfo& info, const Deflated& deflated) {
  return std::make_unique<InflatingReader>(source, info, deflated);
}

}  // namespace rootdk::checkpoint
