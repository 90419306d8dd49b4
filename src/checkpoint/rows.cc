// Values decoded a piece at a time; of column-major arrays fibre by fibre.
#include "checkpoint/rows.h"

#include <algorithm>
#include <array>
#include <type_traits>
#include <vector>

#include "checkpoint/byte_reader.h"
#include "checkpoint/decode.h"
#include "checkpoint/text.h"

namespace rootdk::checkpoint {

namespace {

// What is read at a time: a whole number of blocks of any kind, small enough for the cache and the stack.
constexpr std::int64_t kPieceBytes = 32768;

// Values [begin, begin + count) as the file orders them, begin and count being whole blocks.
template <class Out>
void read_values(const Source& source, const TensorInfo& info, ByteReader& reader, std::int64_t begin,
                 std::int64_t count, Out* out) {
  const EncodingTraits& t = traits(info.encoding);
  const std::int64_t piece = kPieceBytes / t.block_bytes * t.block_values;
  std::array<std::byte, kPieceBytes> bytes;
  for (; count > 0; begin += piece, count -= piece, out += piece) {
    const std::int64_t part = std::min(piece, count);
    const std::span<std::byte> in(bytes.data(), static_cast<std::size_t>(part / t.block_values * t.block_bytes));
    reader.read(static_cast<std::uint64_t>(begin / t.block_values * t.block_bytes), in);
    if constexpr (std::is_same_v<Out, std::int64_t>) {
      const std::int64_t fit = decode_whole(info.encoding, info.byte_order, in.data(), part, out);
      if (fit != part)
        source.refuse_at(info.offset, "tensor {}: {} is beyond int64", in_quotes(info.name),
                         static_cast<std::uint64_t>(out[fit]));
    } else {
      decode(info.encoding, info.byte_order, in.data(), part, out);
    }
  }
}

}  // namespace

template <class Out>
void read_rows(const Source& source, const TensorInfo& info, const Deflated* deflated, Rows wanted,
               std::span<Out> out) {
  if (out.empty()) return;
  const auto reader = reader_of(source, info, deflated);
  const std::int64_t width = info.width(), first = wanted.first, rows = wanted.count;
  if (info.order == Order::kRowMajor || info.shape.size() < 2) {
    read_values(source, info, *reader, first * width, rows * width, out.data());
    return;
  }

  // Column-major: fibres along axis 0 are contiguous, and they come in ascending order when the last axis changes
  // slowest. Of each, the part that can belong to the rows is read; rows are numbered with axis 0 slowest.
  const std::size_t axes = info.shape.size();
  const std::int64_t height = info.shape[0], inner = info.rows() / height;  // rows that share an index of axis 0
  const std::int64_t from = first / inner, to = (first + rows - 1) / inner + 1;
  const std::int64_t fibres = inner * width;
  std::vector<Out> fibre(static_cast<std::size_t>(to - from));
  for (std::int64_t f = 0; f < fibres; ++f) {
    read_values(source, info, *reader, f * height + from, to - from, fibre.data());
    // Indices of axes 1 … last − 1 from f, axis 1 fastest; their row-major number within a row of axis 0.
    std::int64_t rest = f, row = 0, stride = inner;
    for (std::size_t axis = 1; axis + 1 < axes; ++axis) {
      stride /= info.shape[axis];
      row += rest % info.shape[axis] * stride;
      rest /= info.shape[axis];
    }
    const std::int64_t column = rest;
    for (std::int64_t i = from; i < to; ++i) {
      const std::int64_t at = i * inner + row - first;
      if (at >= 0 && at < rows)
        out[static_cast<std::size_t>(at * width + column)] = fibre[static_cast<std::size_t>(i - from)];
    }
  }
}

template void read_rows(const Source&, const TensorInfo&, const Deflated*, Rows, std::span<float>);
template void read_rows(const Source&, const TensorInfo&, const Deflated*, Rows, std::span<double>);
template void read_rows(const Source&, const TensorInfo&, const Deflated*, Rows, std::span<std::int64_t>);

}  // namespace rootdk::checkpoint
