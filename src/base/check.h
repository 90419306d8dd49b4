// Checks of single tensors that functions beside attention share with it.
#pragma once

#include <string>
#include <string_view>

#include "rootdk/tensor.h"

namespace rootdk::base {

/// "[2, 4, 5, 8]"
std::string show(const Extents& shape);

/// Refuses what cannot be read: not a number type, null, on a GPU, misaligned, or reaching beyond any address.
void check_numbers(std::string_view name, const ConstTensor& t);

/// The same, and it must have this shape.
void check_numbers(std::string_view name, const ConstTensor& t, const Extents& shape);

/// Refuses an output that overlaps itself or, unless it is the very same view, an input.
void check_output(std::string_view name, const Tensor& out, std::string_view input_name, const ConstTensor& input);

}  // namespace rootdk::base
