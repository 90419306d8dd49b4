// The three ways of bringing queries and keys together, each forward and backward.
#pragma once

#include "distributed/group.h"
#include "distributed/parts.h"

namespace rootdk::distributed {

/// K and V of some rows in one message, k before v: [batch, heads_kv, length, dim] each, row-major.
struct KvMessage {
  KvMessage() = default;
  KvMessage(const Whole& whole, DType dtype, std::int64_t length);

  Message message;
  Tensor k, v;
};

/// Who takes part: a group of ranks and what each of them holds.
struct Ranks {
  Group group;
  Layout queries, keys;
};

// K and V, and what backward gives, their gradients in the work dtype, are those of this rank's pieces.
void ring_forward(const Ranks& ranks, const Whole& whole, const ConstTensor& k, const ConstTensor& v,
                  ForwardParts& parts);
KvMessage ring_backward(const Ranks& ranks, const Whole& whole, const ConstTensor& k, const ConstTensor& v,
                        BackwardParts& parts);

void all_gather_forward(const Ranks& ranks, const Whole& whole, const ConstTensor& k, const ConstTensor& v,
                        ForwardParts& parts);
KvMessage all_gather_backward(const Ranks& ranks, const Whole& whole, const ConstTensor& k, const ConstTensor& v,
                              BackwardParts& parts);

}  // namespace rootdk::distributed
