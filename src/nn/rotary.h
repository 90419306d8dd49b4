// What Rotary options must satisfy, checked where they come in.
#pragma once

#include "rootdk/nn/rotary.h"

namespace rootdk::nn {

void check_rotary(const Rotary& rotary, std::int64_t dim_qk);

}  // namespace rootdk::nn
