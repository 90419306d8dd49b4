// Where rotary stands every query and key: the positions that the mask's diagonal already gives them, so that a causal
// mask, ALiBi and rotary cannot disagree about what is near.
#pragma once

#include <cstdint>
#include <vector>

#include "rootdk/problem.h"

namespace rootdk::nn {

/// Key position of every query: [len_q], or [batch, len_q] where lengths or documents of their own move the items
/// apart. Queries of no document stand at 0; they see nothing. The mask fits the shape.
std::vector<std::int64_t> query_positions(const Mask& mask, const Shape& shape);

/// Key j stands at j.
std::vector<std::int64_t> key_positions(const Shape& shape);

}  // namespace rootdk::nn
