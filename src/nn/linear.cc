// y = x·Wᵀ + b and its gradients over matmul.h, with sizes checked at each call.
#include "base/refuse.h"
#include "nn/linear.h"

#include <algorithm>
#include <cstddef>

#include "nn/matmul.h"
#include "nn/sizes.h"

namespace rootdk::nn {

using base::refuse;

template <class T>
BasicLinear<T>::BasicLinear(std::int64_t in_width, std::int64_t out_width, bool has_bias)
    : in(in_width), out(out_width) {
  check_size("in", in);
  check_size("out", out);
  weight.assign(static_cast<std::size_t>(in * out), T(0));
  if (has_bias) bias.assign(static_cast<std::size_t>(out), T(0));
}

template <class T>
void BasicLinear<T>::set_zero() {
  std::fill(weight.begin(), weight.end(), T(0));
  std::fill(bias.begin(), bias.end(), T(0));
}

template <class T>
BasicLinear<T> zeros_like(const BasicLinear<T>& layer) {
  return BasicLinear<T>(layer.in, layer.out, layer.has_bias());
}

template <class T>
void check_linear(std::string_view name, const BasicLinear<T>& layer, std::int64_t in, std::int64_t out) {
  if (layer.in != in || layer.out != out)
    refuse("{}: maps {} to {}, but {} to {} is wanted", name, layer.in, layer.out, in, out);
  if (in < 1 || out < 1 || in > kMaxExtent || out > kMaxExtent)
    refuse("{}: maps {} to {}, but 1 to {} is wanted of each", name, in, out, kMaxExtent);
  if (static_cast<std::int64_t>(layer.weight.size()) != in * out)
    refuse("{}.weight: {} values, but {} × {} are wanted", name, layer.weight.size(), out, in);
  if (layer.has_bias() && static_cast<std::int64_t>(layer.bias.size()) != out)
    refuse("{}.bias: {} values, but {} or none are wanted", name, layer.bias.size(), out);
}

template <class T>
void apply(const BasicLinear<T>& layer, Values<const T> x, Values<T> y) {
  check_linear("layer", layer, layer.in, layer.out);
  const std::int64_t rows = rows_in("x", x.size(), layer.in);
  check_rows("y", y.size(), rows, layer.out);
  multiply_by_transpose(rows, layer.in, layer.out, x.data(), layer.weight.data(),
                        layer.has_bias() ? layer.bias.data() : nullptr, y.data());
}

template <class T>
void backward_input(const BasicLinear<T>& layer, Values<const T> d_y, Values<T> d_x, Write write) {
  check_linear("layer", layer, layer.in, layer.out);
  const std::int64_t rows = rows_in("d_y", d_y.size(), layer.out);
  check_rows("d_x", d_x.size(), rows, layer.in);
  if (write == Write::kReplace) std::fill(d_x.begin(), d_x.end(), T(0));
  add_product(rows, layer.in, layer.out, d_y.data(), layer.weight.data(), d_x.data());
}

template <class T>
void backward_parameters(Values<const T> x, Values<const T> d_y, BasicLinear<T>& gradients) {
  check_linear("gradients", gradients, gradients.in, gradients.out);
  const std::int64_t rows = rows_in("x", x.size(), gradients.in);
  check_rows("d_y", d_y.size(), rows, gradients.out);
  add_outer_products(rows, gradients.in, gradients.out, d_y.data(), x.data(), gradients.weight.data());
  if (gradients.has_bias()) add_column_sums(rows, gradients.out, d_y.data(), gradients.bias.data());
}

#define ROOTDK_INSTANTIATE(T)                                                                      \
  template struct BasicLinear<T>;                                                                  \
  template BasicLinear<T> zeros_like(const BasicLinear<T>&);                                       \
  template void check_linear(std::string_view, const BasicLinear<T>&, std::int64_t, std::int64_t); \
  template void apply(const BasicLinear<T>&, Values<const T>, Values<T>);                          \
  template void backward_input(const BasicLinear<T>&, Values<const T>, Values<T>, Write);          \
  template void backward_parameters(Values<const T>, Values<const T>, BasicLinear<T>&);
ROOTDK_INSTANTIATE(float)
ROOTDK_INSTANTIATE(double)
#undef ROOTDK_INSTANTIATE

}  // namespace rootdk::nn
