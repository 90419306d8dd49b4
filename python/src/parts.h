// A long call in parts, so that Ctrl-C is heard: the engine does not stop half-way, but heads and batch items do not
// need each other, and alone or together they have the same bits.
#pragma once

#include <vector>

#include "rootdk/attention.h"

namespace rootdk::python {

/// Batch items and key heads, each with the query heads that read it.
struct Part {
  std::int64_t batch = 0, batches = 0;
  std::int64_t head_kv = 0, heads_kv = 0;
};

/// Everything in one part where it is short, or where what is computed reaches over heads.
std::vector<Part> parts_of(const Problem& problem, const Shape& shape, Pass pass, bool shared_bias_gradient);

Problem part(const Problem& problem, const Shape& shape, const Part& part);
Inputs part(const Inputs& inputs, const Part& part);
Outputs part(const Outputs& outputs, const Shape& shape, const Part& part);
BackwardInputs part(const BackwardInputs& inputs, const Shape& shape, const Part& part);
Gradients part(const Gradients& gradients, const Shape& shape, const Part& part);

}  // namespace rootdk::python
