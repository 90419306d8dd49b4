// What attention over ranks takes of a rank's memory, tensor by tensor and message by message as the code of each way
// makes them: part of the cost model. Not counted: workspaces of the engine, control messages, a bias in 16 bits that
// is widened, and the copy of q that a scale by length needs where q is as wide as partial results.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <numeric>
#include <vector>

#include "distributed/tiles.h"
#include "rootdk/distributed/cost.h"

namespace rootdk::distributed {

/// Numbers of one rank and another.
template <class T>
struct Table {
  explicit Table(int size) : ranks(static_cast<std::size_t>(size)), values(ranks * ranks) {}
  T& at(int r, int c) { return values[static_cast<std::size_t>(r) * ranks + static_cast<std::size_t>(c)]; }
  const T& at(int r, int c) const { return values[static_cast<std::size_t>(r) * ranks + static_cast<std::size_t>(c)]; }
  T row_sum(int r) const {
    const auto first = values.begin() + static_cast<std::ptrdiff_t>(static_cast<std::size_t>(r) * ranks);
    return std::accumulate(first, first + static_cast<std::ptrdiff_t>(ranks), T{});
  }

  std::size_t ranks;
  std::vector<T> values;
};

/// Of tensors of the heads that are on a rank.
struct Sizes {
  Shape shape;
  std::int64_t run_q = 0, run_kv = 0;  ///< heads of the largest call of the engine

  std::int64_t element() const { return size_of(shape.dtype); }
  std::int64_t wide() const { return shape.dtype == DType::kF64 ? 8 : 4; }
  std::int64_t copy() const { return element() < wide() ? wide() : 0; }  ///< of an element that a part wants wider
  std::int64_t rows(std::int64_t queries) const { return shape.batch * shape.heads_q * queries; }
  std::int64_t kv(std::int64_t keys, std::int64_t bytes) const {
    return shape.batch * shape.heads_kv * keys * (shape.dim_qk + shape.dim_v) * bytes;
  }
  Sizes of_heads(int ranks, int rank) const;
};

using Bytes = std::array<std::int64_t, 2>;  ///< forward, backward

inline Bytes larger(const Bytes& a, const Bytes& b) { return {std::max(a[0], b[0]), std::max(a[1], b[1])}; }

/// Tokens.
struct Held {
  std::int64_t queries = 0, keys = 0;
};

/// Of one call of the engine: keys and values widened, its results.
Bytes part_bytes(const Sizes& sizes, const Tile& tile, const Luggage& luggage);

/// Of each rank; `parts` has the largest call of a rank on the keys of another.
std::vector<Bytes> ring_memory(const Sizes& sizes, const Layout& queries, const Layout& keys,
                               const std::vector<int>& hops, const Table<Bytes>& parts, const Luggage& luggage);

struct Gathering {
  std::int64_t keys = 0;     ///< that a rank has in the end
  std::int64_t needing = 0;  ///< ranks that need its own, itself among them
};

Bytes gather_memory(const Sizes& sizes, const Held& own, const Gathering& gathering, const Bytes& part,
                    const Luggage& luggage);

/// Of heads that travel inside nodes of so many ranks.
class TravelMemory {
 public:
  TravelMemory(const Sizes& all, int size, const Luggage& luggage);

  /// Of the j-th rank of a node; `ring` is what it takes to attend to what is there then.
  Bytes of(int j, const Held& own, const Held& node, const Bytes& ring) const;

 private:
  Sizes all_;
  int size_;
  Luggage luggage_;
  bool sums_keys_;              ///< several ranks read the same head of keys
  std::int64_t key_heads_ = 0;  ///< of all ranks of the node, each with its own
};

}  // namespace rootdk::distributed
