// Three linear layers, silu and a product between them; backward takes what forward saved.
#include "rootdk/nn/mlp.h"

#include <cmath>
#include <cstddef>

#include "nn/buffer.h"
#include "nn/chunks.h"
#include "nn/sizes.h"

namespace rootdk::nn {

namespace {

// Elements that a thread takes at a time.
constexpr std::int64_t kActivationChunk = 1 << 13;

}  // namespace

template <class T>
BasicMlp<T>::BasicMlp(std::int64_t width, std::int64_t hidden)
    : gate(width, hidden, false), up(width, hidden, false), down(hidden, width, false) {}

template <class T>
void apply(const BasicMlp<T>& mlp, Values<const T> x, Values<T> y, BasicMlpSaved<T>& saved) {
  const std::int64_t rows = rows_in("x", x.size(), mlp.gate.in), count = rows * mlp.gate.out;
  for (std::vector<T>* array : {&saved.gate, &saved.sigmoid, &saved.up, &saved.hidden})
    array->resize(static_cast<std::size_t>(count));
  apply(mlp.gate, x, saved.gate);
  apply(mlp.up, x, saved.up);
  for_each_chunk(
      count,
      [&](std::int64_t, std::int64_t first, std::int64_t last) {
        for (auto i = static_cast<std::size_t>(first); i < static_cast<std::size_t>(last); ++i) {
          saved.sigmoid[i] = 1 / (1 + std::exp(-saved.gate[i]));
          saved.hidden[i] = saved.gate[i] * saved.sigmoid[i] * saved.up[i];
        }
      },
      kActivationChunk);
  apply(mlp.down, saved.hidden, y);
}

template <class T>
void backward(const BasicMlp<T>& mlp, Values<const T> x, const BasicMlpSaved<T>& saved, Values<const T> d_y,
              Values<T> d_x, BasicMlp<T>& gradients) {
  const std::int64_t rows = rows_in("x", x.size(), mlp.gate.in), count = rows * mlp.gate.out;
  for (const std::vector<T>* array : {&saved.gate, &saved.sigmoid, &saved.up, &saved.hidden})
    check_rows("saved", array->size(), rows, mlp.gate.out);
  check_rows("d_y", d_y.size(), rows, mlp.down.out);
  check_rows("d_x", d_x.size(), rows, mlp.gate.in);

  const Buffer<T> d_hidden(count), d_gate(count);
  backward_input(mlp.down, d_y, d_hidden.values());
  backward_parameters(saved.hidden, d_y, gradients.down);

  // silu′(g) = σ + g·σ·(1 − σ). The gradient of up takes the place of that of hidden.
  for_each_chunk(
      count,
      [&](std::int64_t, std::int64_t first, std::int64_t last) {
        for (auto i = static_cast<std::size_t>(first); i < static_cast<std::size_t>(last); ++i) {
          const T d = d_hidden.values()[i], g = saved.gate[i], s = saved.sigmoid[i];
          d_gate.values()[i] = d * saved.up[i] * s * (1 + g * (1 - s));
          d_hidden.values()[i] = d * g * s;
        }
      },
      kActivationChunk);
  const std::span<T> d_up = d_hidden.values();
  backward_parameters(x, d_gate.values(), gradients.gate);
  backward_parameters(x, d_up, gradients.up);
  backward_input(mlp.gate, d_gate.values(), d_x);
  backward_input(mlp.up, d_up, d_x, Write::kAdd);
}

#define ROOTDK_INSTANTIATE(T)                                                                                      \
  template struct BasicMlp<T>;                                                                                     \
  template void apply(const BasicMlp<T>&, Values<const T>, Values<T>, BasicMlpSaved<T>&);                          \
  template void backward(const BasicMlp<T>&, Values<const T>, const BasicMlpSaved<T>&, Values<const T>, Values<T>, \
                         BasicMlp<T>&);
ROOTDK_INSTANTIATE(float)
ROOTDK_INSTANTIATE(double)
#undef ROOTDK_INSTANTIATE

}  // namespace rootdk::nn
