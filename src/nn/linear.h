// What a Linear must hold before anything reads it, checked at the API's edge.
#pragma once

#include <limits>
#include <string_view>

#include "rootdk/nn/linear.h"

namespace rootdk::nn {

/// BLAS counts in int32.
inline constexpr std::int64_t kMaxExtent = std::numeric_limits<std::int32_t>::max();

/// Throws unless `layer` maps in → out and its arrays have those sizes. `name` says whose it is: "parameters.q".
template <class T>
void check_linear(std::string_view name, const BasicLinear<T>& layer, std::int64_t in, std::int64_t out);

}  // namespace rootdk::nn
