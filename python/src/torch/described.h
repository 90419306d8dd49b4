// What an operator of torch computes: a Problem, from tensors and two lists of numbers.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "rootdk/problem.h"
#include "tensors.h"

namespace rootdk::torch_operators {

using Numbers = std::optional<std::vector<std::int64_t>>;
using Reals = std::optional<std::vector<double>>;

/// The tensors that belong to the problem; each may be absent.
struct ProblemTensors {
  const MaybeTensor &scale, &mask, &bias, &sink, &seed;
};

/// A Problem and the arrays it looks into, but for those of `numbers` and of the tensors: keep them alive.
class Described {
 public:
  Described(const ProblemTensors& tensors, const Numbers& numbers, const Reals& reals, std::int64_t heads);
  Described(const Described&) = delete;

  Problem problem;

 private:
  std::vector<float> scale_, sink_, slopes_;
};

}  // namespace rootdk::torch_operators
