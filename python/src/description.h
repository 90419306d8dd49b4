// What a problem says beside its tensors, as one list of whole numbers and one of reals: python/rootdk/_description.py
// packs it, and says what lies where.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "rootdk/problem.h"

namespace rootdk::python {

/// Puts it into `problem`, whose mask then looks into `numbers`, and into `slopes`, which this fills: keep both alive.
void read_description(std::span<const std::int64_t> numbers, std::span<const double> reals, Problem& problem,
                      std::vector<float>& slopes);

}  // namespace rootdk::python
