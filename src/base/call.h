// What the engine hands to a kernel: a plan and checked tensors. Every kernel in the table takes these two.
#pragma once

#include <cstddef>

#include "base/row_record.h"
#include "rootdk/attention.h"

namespace rootdk::base {

struct ForwardCall {
  const Plan& plan;
  const Inputs& in;
  const Outputs& out;
  RowRecord* records;    ///< [batch, heads_q, len_q], or null when no statistics are wanted
  FullRecord* full;      ///< likewise, below StatsLevel::kFull; only of rows that are sampled
  Causes* causes;        ///< [batch, heads_q], or null; `weight` and `scale_square` are the engine's
  std::int64_t* gaps;    ///< [batch, heads_q, GapHistogram::kBins], zero on entry, or null
  std::byte* workspace;  ///< as many bytes as the kernel asked for, aligned to 64
};

struct BackwardCall {
  const Plan& plan;
  const BackwardInputs& in;
  const Gradients& grad;
  HeadGradients* stats;  ///< [batch, heads_q], or null
  std::byte* workspace;
};

/// Where key `key` of batch item `batch` lies in k or v: the first two indices into the tensor's batch and length axes.
struct KeyPlace {
  std::int64_t item, row;
};

inline KeyPlace place_of_key(const Problem& problem, const ConstTensor& k, std::int64_t batch, std::int64_t key) {
  if (!problem.paged) return {batch, key};
  const std::int64_t page_size = k.shape[2];
  const auto slot = static_cast<std::size_t>(batch * problem.paged->pages_per_item + key / page_size);
  return {problem.paged->table[slot], key % page_size};
}

}  // namespace rootdk::base
