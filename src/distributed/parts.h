// Attention of the queries that are here over keys that come part by part: each part through the engine, in f32, then
// merged (forward) or added (backward). Every way of moving keys ends here.
#pragma once

#include <functional>
#include <vector>

#include "distributed/memory.h"
#include "distributed/tiles.h"
#include "rootdk/attention.h"

namespace rootdk::distributed {

/// Query heads and the key heads they read, each of them by as many: what the engine takes in one call.
struct HeadRun {
  std::int64_t q_begin = 0, q_count = 0, kv_begin = 0, kv_count = 0;
};

/// What parts are parts of. `shape` has the lengths of the whole sequence and the heads that are here; the arrays per
/// head of `problem` are theirs.
struct Whole {
  Problem problem;
  Shape shape;
  Machine machine;
  SharedMeter meter;
  std::vector<HeadRun> heads = {};  ///< of the heads here, in order

  /// Partial results are kept in this, and what travels between ranks as a sum.
  DType work() const { return shape.dtype == DType::kF64 ? DType::kF64 : DType::kF32; }
};

/// Called between calls of the engine, so that transfers go on.
using Poll = std::function<void()>;

/// All row tensors of some rows, each a Block.
class RowBlocks {
 public:
  RowBlocks() = default;
  RowBlocks(const SharedMeter& meter, DType dtype, const Extents& shape);
  const RowTensors& tensors() const { return tensors_; }

 private:
  std::vector<Block> blocks_;
  RowTensors tensors_;
};

/// In the order in which they lie in messages: raw_max, score_max, p_max, then those of full statistics.
std::vector<Tensor RowTensors::*> row_tensors();

class ForwardParts {
 public:
  /// `q` [batch, heads_q, tokens of `queries`, dim_qk]. Begins with what a row is that has seen nothing but the sink.
  ForwardParts(const Whole& whole, const Pieces& queries, const ConstTensor& q);

  /// Keys and values of these pieces.
  void add(const Pieces& keys, const ConstTensor& k, const ConstTensor& v, const Poll& poll = {});

  /// o, lse and, where there are statistics, all row tensors.
  Outputs result() const;

 private:
  void run(const Tile& tile, const HeadRun& heads, const ConstTensor& k, const ConstTensor& v);
  void begin_rows();

  const Whole& whole_;
  Pieces queries_;
  Block widened_q_, o_, lse_;
  ConstTensor q_;
  RowBlocks rows_;
};

/// Gradients that are one number per head, as sums that grow.
struct HeadSums {
  explicit HeadSums(std::int64_t heads)
      : scale(static_cast<std::size_t>(heads)), sink(scale), gain(scale), offset(scale) {}
  std::vector<double> scale, sink, gain, offset;
};

class BackwardParts {
 public:
  /// All of them of the queries that are here.
  BackwardParts(const Whole& whole, const Pieces& queries, const BackwardInputs& in);

  /// Adds to d_k and d_v, which are of these keys, in the work dtype.
  void add(const Pieces& keys, const ConstTensor& k, const ConstTensor& v, const Tensor& d_k, const Tensor& d_v,
           const Poll& poll = {});

  /// Of the queries here, once all keys were there.
  HeadSums sums();
  void write(const Tensor& d_q) const;

 private:
  void run(const Tile& tile, const HeadRun& heads, const ConstTensor& k, const ConstTensor& v, const Tensor& d_k,
           const Tensor& d_v);

  const Whole& whole_;
  Pieces queries_;
  BackwardInputs in_;  ///< k and v absent
  ConstTensor plain_q_;
  Block widened_q_, widened_o_, widened_d_o_, d_q_;
  HeadSums sums_;
};

}  // namespace rootdk::distributed
