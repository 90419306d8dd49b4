// Parts of tensors: cut along batch, heads or length without a copy; copied, widened and added.
#pragma once

#include <cstring>

#include "base/element.h"
#include "rootdk/distributed/layout.h"
#include "rootdk/tensor.h"

namespace rootdk::distributed {

enum Axis : std::size_t { kBatch, kHeads, kLength, kDim };

/// Entries begin … begin + count − 1 of an axis. An absent tensor stays absent.
template <class Void>
BasicTensor<Void> cut(BasicTensor<Void> t, Axis axis, std::int64_t begin, std::int64_t count) {
  if (!t.present()) return t;
  using Byte = std::conditional_t<std::is_const_v<Void>, const std::byte, std::byte>;
  t.data = static_cast<Byte*>(t.data) + begin * t.strides[axis] * size_of(t.dtype);
  t.shape[axis] = count;
  return t;
}

/// The same of an axis that may be 1 where it is the same for all.
inline ConstTensor cut_broadcast(const ConstTensor& t, Axis axis, std::int64_t begin, std::int64_t count) {
  return t.present() && t.shape[axis] != 1 ? cut(t, axis, begin, count) : t;
}

template <class Visit>
void each_row(const Extents& shape, const Visit& visit) {
  for (std::int64_t b = 0; b < shape[kBatch]; ++b)
    for (std::int64_t h = 0; h < shape[kHeads]; ++h)
      for (std::int64_t i = 0; i < shape[kLength]; ++i) visit(b, h, i);
}

/// to ← from, whatever their dtypes and strides.
inline void copy(const ConstTensor& from, const Tensor& to) {
  const bool whole_rows = from.dtype == to.dtype && from.strides[kDim] == 1 && to.strides[kDim] == 1;
  const std::int64_t dim = from.shape[kDim], size = size_of(from.dtype);
  each_row(from.shape, [&](std::int64_t b, std::int64_t h, std::int64_t i) {
    const std::int64_t source = b * from.strides[kBatch] + h * from.strides[kHeads] + i * from.strides[kLength],
                       target = b * to.strides[kBatch] + h * to.strides[kHeads] + i * to.strides[kLength];
    if (whole_rows) {
      std::memcpy(static_cast<std::byte*>(to.data) + target * size,
                  static_cast<const std::byte*>(from.data) + source * size, static_cast<std::size_t>(dim * size));
      return;
    }
    for (std::int64_t d = 0; d < dim; ++d)
      base::write(to.dtype, to.data, target + d * to.strides[kDim],
                  base::read(from.dtype, from.data, source + d * from.strides[kDim]));
  });
}

/// to ← to + from, element by element.
inline void add(const ConstTensor& from, const Tensor& to) {
  each_row(from.shape, [&](std::int64_t b, std::int64_t h, std::int64_t i) {
    for (std::int64_t d = 0; d < from.shape[kDim]; ++d)
      base::write(to, b, h, i, d, base::read(to, b, h, i, d) + base::read(from, b, h, i, d));
  });
}

/// Where each piece begins along the length axis of who holds them.
inline std::vector<std::int64_t> places_of(const Pieces& pieces) {
  std::vector<std::int64_t> out;
  std::int64_t place = 0;
  for (const Piece& piece : pieces) out.push_back(place), place += piece.length();
  return out;
}

/// Where token `token` lies, which one of the pieces holds.
inline std::int64_t place_of(const Pieces& pieces, std::int64_t token) {
  std::int64_t place = 0;
  for (const Piece& piece : pieces) {
    if (token < piece.end) return place + token - piece.begin;
    place += piece.length();
  }
  return place;
}

inline std::int64_t length_of(const Pieces& pieces) {
  std::int64_t sum = 0;
  for (const Piece& piece : pieces) sum += piece.length();
  return sum;
}

/// Rows of tokens between a tensor of one set of pieces and a tensor of a larger one: calls visit(place in the small
/// one, place in the large one, length).
template <class Visit>
void each_run(const Pieces& small, const Pieces& large, const Visit& visit) {
  std::int64_t place = 0;
  for (const Piece& piece : small) {
    visit(place, place_of(large, piece.begin), piece.length());
    place += piece.length();
  }
}

}  // namespace rootdk::distributed
