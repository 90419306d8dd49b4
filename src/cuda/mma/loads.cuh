// Rows of tensors on their way into tiles: by asynchronous copies of 16, 8 or 4 bytes, as address and strides allow, or
// element by element where dim is not innermost or an address is odd. Rows that a tile does not show become zero and
// are not read: what lies there may be anything, and so may a page table behind a length.
//
// A thread's copies belong to the group that copies_commit() ends; what is stored element by element is there at once.
// Either way others see it after copies_wait and a barrier.
#pragma once

#include "cuda/common/rows.cuh"
#include "cuda/mma/tile.cuh"

namespace rootdk::cuda::mma {

/// Bytes that rows of a tensor [batch, heads, length, dim] of 2-byte elements can be copied by; 0: one element at a
/// time.
inline int copy_width(const View& t) {
  if (t.strides[3] != 1) return 0;  // 0: one element, or one that is repeated
  for (const int width : {16, 8, 4}) {
    bool fits = reinterpret_cast<std::uintptr_t>(t.data) % static_cast<unsigned>(width) == 0;
    for (int axis = 0; axis < 3; ++axis) fits = fits && t.strides[axis] * 2 % width == 0;
    if (fits) return width;
  }
  return 0;
}

/// Where rows of one head lie: of queries, or of keys that may be in pages.
struct HeadRows {
  const char* data;
  std::int64_t row_bytes, page_bytes;   ///< from row to row, from page to page
  std::int64_t element_bytes;           ///< from element to element
  const std::int32_t* pages = nullptr;  ///< of this item
  unsigned page_size = 1;

  __device__ __forceinline__ HeadRows(const View& t, std::int64_t b, std::int64_t head)
      : data(t.data + 2 * at(t, b, head, 0)),
        row_bytes(2 * t.strides[2]),
        page_bytes(0),
        element_bytes(2 * t.strides[3]) {}
  /// K or V.
  __device__ __forceinline__ HeadRows(const ProblemView& p, const View& t, std::int64_t b, std::int64_t kv_head)
      : HeadRows(t, p.pages ? 0 : b, kv_head) {
    if (!p.pages) return;
    pages = p.pages + b * p.pages_per_item;
    page_size = static_cast<unsigned>(min(p.page_size, std::int64_t{1} << 30)), page_bytes = 2 * t.strides[0];
  }

  __device__ __forceinline__ const char* row(int j) const {
    if (!pages) return data + j * row_bytes;
    const unsigned page = static_cast<unsigned>(j) / page_size, within = static_cast<unsigned>(j) - page * page_size;
    return data + pages[page] * page_bytes + within * row_bytes;
  }
};

/// load_rows where pieces of 16 bytes will not do.
template <int kDim, int kRows, int kThreads, class RowAt>
__device__ __forceinline__ void load_rows_slowly(SharedAddress tile, const char* anywhere, std::int64_t element_bytes,
                                                 int dim, int width, int begin, int end, const RowAt& row_at) {
#pragma unroll 1
  for (int x = static_cast<int>(threadIdx.x); x < kRows * kDim / 8; x += kThreads) {
    const int row = x / (kDim / 8), piece = x % (kDim / 8);
    const SharedAddress to = tile + place_of<kDim>(row, piece);
    const bool shown = row >= begin && row < end;
    const char* from = shown ? row_at(row) : anywhere;
    const int bytes = shown ? max(0, min(16, 2 * (dim - 8 * piece))) : 0;  // of this piece
    if (width == 0) {
      std::uint32_t pairs[4] = {0, 0, 0, 0};
#pragma unroll
      for (int e = 0; e < 8; ++e)
        if (2 * e < bytes)
          pairs[e / 2] |= std::uint32_t{*reinterpret_cast<const std::uint16_t*>(from + (8 * piece + e) * element_bytes)}
                          << 16 * (e % 2);
      store_shared(to, uint4{pairs[0], pairs[1], pairs[2], pairs[3]});
      continue;
    }
#pragma unroll 1
    for (int part = 0; part < 16; part += width) {
      const int left = max(0, min(width, bytes - part));
      const char* at = left > 0 ? from + 16 * piece + part : anywhere;
      if (width == 8) copy_async<8>(to + static_cast<unsigned>(part), at, left);
      else copy_async<4>(to + static_cast<unsigned>(part), at, left);
    }
  }
}

/// Rows begin … end − 1 of a tile of kRows come from row_at(row), the address of a row's first element, which is not
/// asked of others: they are zero. Elements from `dim` on are zero, too. `anywhere` is an address that can be read.
template <int kDim, int kRows, int kThreads, class RowAt>
__device__ __forceinline__ void load_rows(SharedAddress tile, const char* anywhere, std::int64_t element_bytes, int dim,
                                          int width, int begin, int end, const RowAt& row_at) {
  if (width != 16) {
    load_rows_slowly<kDim, kRows, kThreads>(tile, anywhere, element_bytes, dim, width, begin, end, row_at);
    return;
  }
  constexpr int kPieces = kDim / 8, kStep = kThreads / kPieces;
  static_assert(kThreads % kPieces == 0 && kRows % kStep == 0);
  const int piece = static_cast<int>(threadIdx.x) % kPieces, first = static_cast<int>(threadIdx.x) / kPieces;
  const int bytes = max(0, min(16, 2 * (dim - 8 * piece)));
#pragma unroll
  for (int n = 0; n < kRows / kStep; ++n) {
    const int row = first + n * kStep;
    const bool shown = row >= begin && row < end && bytes > 0;
    copy_async<16>(tile + place_of<kDim>(row, piece), shown ? row_at(row) + 16 * piece : anywhere, shown ? bytes : 0);
  }
}

/// Keys first_key … of a head into a tile of kKeys; those outside begin … end − 1 become zero.
template <int kDim, int kKeys, int kThreads>
__device__ __forceinline__ void load_keys(SharedAddress tile, const HeadRows& rows, int dim, int width, int first_key,
                                          int begin, int end) {
  load_rows<kDim, kKeys, kThreads>(tile, rows.data, rows.element_bytes, dim, width, begin - first_key, end - first_key,
                                   [&](int row) { return rows.row(first_key + row); });
}

}  // namespace rootdk::cuda::mma
