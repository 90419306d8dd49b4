// The operators' own work on the CPU: tensors of torch in, new ones out.
#pragma once

#include <tuple>
#include <vector>

#include "described.h"
#include "tensors.h"

namespace rootdk::torch_operators {

struct Given {
  const TorchTensor &q, &k, &v;
};

struct Attended {
  TorchTensor out;
  MaybeTensor lse;  ///< where it was wanted
};

Attended attend(const Given& given, const Problem& problem, bool with_lse);

/// What backward knows of forward, and what came down to it.
struct Returned {
  const TorchTensor& d_out;
  const MaybeTensor& d_lse;
  const TorchTensor &out, &lse;
};

/// Which gradients: bits of a number, in this order.
enum Wanted : std::int64_t { kQ = 1, kK = 2, kV = 4, kScale = 8, kBias = 16, kSink = 32 };

/// Those wanted, in the order of Wanted, each in the layout of what it is the gradient of.
std::vector<TorchTensor> attend_backward(const Returned& returned, const Given& given, const Problem& problem,
                                         std::int64_t wanted);

}  // namespace rootdk::torch_operators
