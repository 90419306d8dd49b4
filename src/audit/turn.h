// Rotary positions of any frequencies.
#pragma once

#include <span>

#include "rootdk/tensor.h"
#include "rootdk/theory/head.h"

namespace rootdk::audit {

/// Turns the leading components of x [batch, heads, length, dim] f32 by their position, 0 … length − 1, and multiplies
/// them by `magnitude`.
void turn(const theory::Rotation& rotation, double magnitude, const Tensor& x);

}  // namespace rootdk::audit
