#include "base/refuse.h"
#include "nn/linear.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "nn/matmul.h"

namespace rootdk::nn {

using base::refuse;

namespace {

// Rows in an array of rows of `width`; `name` is the array.
std::int64_t rows_in(std::string_view name, std::size_t size, std::int64_t width) {
  const auto count = static_cast<std::int64_t>(size);
  if (count % width != 0) refuse("{}: {} values, which is not a whole number of rows of {}", name, count, width);
  if (count / width > kMaxExtent) refuse("{}: {} rows, but at most {} are supported", name, count / width, kMaxExtent);
  return count / width;
}

void check_rows(std::string_view name, std::size_t size, std::int64_t rows, std::int64_t width) {
  if (static_cast<std::int64_t>(size) != rows * width)
    refuse("{}: {} values, but {} rows of {} are wanted", name, size, rows, width);
}

}  // namespace

Linear::Linear(std::int64_t in_width, std::int64_t out_width, bool has_bias) : in(in_width), out(out_width) {
  for (const auto& [name, value] : {std::pair{"in", in}, {"out", out}})
    if (value < 1 || value > kMaxExtent) refuse("{}: {}, but 1 to {} is wanted", name, value, kMaxExtent);
  weight.assign(static_cast<std::size_t>(in * out), 0.0f);
  if (has_bias) bias.assign(static_cast<std::size_t>(out), 0.0f);
}

void Linear::set_zero() {
  std::fill(weight.begin(), weight.end(), 0.0f);
  std::fill(bias.begin(), bias.end(), 0.0f);
}

Linear zeros_like(const Linear& layer) { return Linear(layer.in, layer.out, layer.has_bias()); }

void check_linear(std::string_view name, const Linear& layer, std::int64_t in, std::int64_t out) {
  if (layer.in != in || layer.out != out)
    refuse("{}: maps {} to {}, but {} to {} is wanted", name, layer.in, layer.out, in, out);
  if (in < 1 || out < 1 || in > kMaxExtent || out > kMaxExtent)
    refuse("{}: maps {} to {}, but 1 to {} is wanted of each", name, in, out, kMaxExtent);
  if (static_cast<std::int64_t>(layer.weight.size()) != in * out)
    refuse("{}.weight: {} values, but {} × {} are wanted", name, layer.weight.size(), out, in);
  if (layer.has_bias() && static_cast<std::int64_t>(layer.bias.size()) != out)
    refuse("{}.bias: {} values, but {} or none are wanted", name, layer.bias.size(), out);
}

void apply(const Linear& layer, std::span<const float> x, std::span<float> y) {
  check_linear("layer", layer, layer.in, layer.out);
  const std::int64_t rows = rows_in("x", x.size(), layer.in);
  check_rows("y", y.size(), rows, layer.out);
  multiply_by_transpose(rows, layer.in, layer.out, x.data(), layer.weight.data(),
                        layer.has_bias() ? layer.bias.data() : nullptr, y.data());
}

void backward_input(const Linear& layer, std::span<const float> d_y, std::span<float> d_x, Write write) {
  check_linear("layer", layer, layer.in, layer.out);
  const std::int64_t rows = rows_in("d_y", d_y.size(), layer.out);
  check_rows("d_x", d_x.size(), rows, layer.in);
  if (write == Write::kReplace) std::fill(d_x.begin(), d_x.end(), 0.0f);
  add_product(rows, layer.in, layer.out, d_y.data(), layer.weight.data(), d_x.data());
}

void backward_parameters(std::span<const float> x, std::span<const float> d_y, Linear& gradients) {
  check_linear("gradients", gradients, gradients.in, gradients.out);
  const std::int64_t rows = rows_in("x", x.size(), gradients.in);
  check_rows("d_y", d_y.size(), rows, gradients.out);
  add_outer_products(rows, gradients.in, gradients.out, d_y.data(), x.data(), gradients.weight.data());
  if (gradients.has_bias()) add_column_sums(rows, gradients.out, d_y.data(), gradients.bias.data());
}

}  // namespace rootdk::nn
