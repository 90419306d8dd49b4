// Weights and norms of a checkpoint as something that can be applied.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "rootdk/audit/model.h"
#include "rootdk/checkpoint/checkpoint.h"
#include "rootdk/nn/linear.h"
#include "rootdk/tensor.h"

namespace rootdk::audit {

/// Rows of so many heads, one behind the other.
nn::Linear linear_of(const checkpoint::Checkpoint& checkpoint, const Part& part, std::int64_t heads);
nn::Linear linear_of(const checkpoint::Checkpoint& checkpoint, const Dense& dense);

/// Rows 0 … rows − 1 of a tensor.
std::vector<float> rows_of(const checkpoint::Checkpoint& checkpoint, const std::string& tensor, std::int64_t rows);

/// A norm, read and ready.
class ReadNorm {
 public:
  ReadNorm(const checkpoint::Checkpoint& checkpoint, const NormPlace& place, double epsilon);

  bool present() const { return kind_ != theory::Norm::Kind::kNone; }
  /// x [batch, heads, length, dim], each row of `dim` by itself, in place. Does nothing where there is no norm.
  void apply(const Tensor& x) const;
  /// Rows of `width`.
  void apply(std::span<float> x, std::int64_t width) const;

 private:
  theory::Norm::Kind kind_;
  double epsilon_;
  std::vector<float> gain_, bias_;
};

}  // namespace rootdk::audit
