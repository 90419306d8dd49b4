// Sums of a row in double; gradients of the gain by chunks of rows, added in order.
#include "rootdk/nn/rms_norm.h"

#include <cmath>
#include <cstddef>

#include "nn/chunks.h"
#include "nn/sizes.h"

namespace rootdk::nn {

template <class T>
BasicRmsNorm<T>::BasicRmsNorm(std::int64_t columns, double eps) : epsilon(eps) {
  check_size("width", columns);
  if (!(epsilon >= 0 && std::isfinite(epsilon)))
    base::refuse("epsilon: {}, but a finite number of at least 0 is wanted", epsilon);
  gain.assign(static_cast<std::size_t>(columns), T(1));
}

template <class T>
void apply(const BasicRmsNorm<T>& norm, Values<const T> x, Values<T> y, Values<T> inverse_rms) {
  const std::int64_t width = norm.width();
  check_size("norm.gain", width);
  const std::int64_t rows = rows_in("x", x.size(), width);
  check_rows("y", y.size(), rows, width);
  check_rows("inverse_rms", inverse_rms.size(), rows, 1);
  for_each_chunk(rows, [&](std::int64_t, std::int64_t first, std::int64_t last) {
    for (std::int64_t r = first; r < last; ++r) {
      const T* const in = x.data() + r * width;
      T* const out = y.data() + r * width;
      double squares = 0;
      for (std::int64_t c = 0; c < width; ++c) squares += static_cast<double>(in[c]) * static_cast<double>(in[c]);
      const T inverse = static_cast<T>(1 / std::sqrt(squares / static_cast<double>(width) + norm.epsilon));
      inverse_rms[static_cast<std::size_t>(r)] = inverse;
      for (std::int64_t c = 0; c < width; ++c) out[c] = in[c] * inverse * norm.gain[static_cast<std::size_t>(c)];
    }
  });
}

// With r = 1/rms and n = r·x: y = n·gain, so d_n = d_y·gain and d_x = r·(d_n − n·mean(d_n·n)).
template <class T>
void backward(const BasicRmsNorm<T>& norm, Values<const T> x, Values<const T> inverse_rms, Values<const T> d_y,
              Values<T> d_x, BasicRmsNorm<T>& gradients, Write write) {
  const std::int64_t width = norm.width();
  check_size("norm.gain", width);
  const std::int64_t rows = rows_in("x", x.size(), width);
  check_rows("inverse_rms", inverse_rms.size(), rows, 1);
  check_rows("d_y", d_y.size(), rows, width);
  check_rows("d_x", d_x.size(), rows, width);
  check_rows("gradients.gain", gradients.gain.size(), 1, width);

  std::vector<double> d_gain(static_cast<std::size_t>(chunks_in(rows) * width), 0.0);  // [chunks, width]
  for_each_chunk(rows, [&](std::int64_t chunk, std::int64_t first, std::int64_t last) {
    double* const partial = d_gain.data() + chunk * width;
    for (std::int64_t r = first; r < last; ++r) {
      const T* const in = x.data() + r * width;
      const T* const d_out = d_y.data() + r * width;
      T* const d_in = d_x.data() + r * width;
      const T inverse = inverse_rms[static_cast<std::size_t>(r)];
      double dot = 0;  // Σ d_n·n
      for (std::int64_t c = 0; c < width; ++c) {
        const double d_normed_gain = static_cast<double>(d_out[c] * (in[c] * inverse));
        partial[c] += d_normed_gain;
        dot += d_normed_gain * static_cast<double>(norm.gain[static_cast<std::size_t>(c)]);
      }
      const T mean = static_cast<T>(dot / static_cast<double>(width));
      for (std::int64_t c = 0; c < width; ++c) {
        const T d = inverse * (d_out[c] * norm.gain[static_cast<std::size_t>(c)] - in[c] * inverse * mean);
        d_in[c] = write == Write::kAdd ? d_in[c] + d : d;
      }
    }
  });
  for (std::int64_t c = 0; c < width; ++c) {
    double sum = 0;
    for (std::int64_t chunk = 0; chunk < chunks_in(rows); ++chunk)
      sum += d_gain[static_cast<std::size_t>(chunk * width + c)];
    gradients.gain[static_cast<std::size_t>(c)] += static_cast<T>(sum);
  }
}

#define ROOTDK_INSTANTIATE(T)                                                                                  \
  template struct BasicRmsNorm<T>;                                                                             \
  template void apply(const BasicRmsNorm<T>&, Values<const T>, Values<T>, Values<T>);                          \
  template void backward(const BasicRmsNorm<T>&, Values<const T>, Values<const T>, Values<const T>, Values<T>, \
                         BasicRmsNorm<T>&, Write);
ROOTDK_INSTANTIATE(float)
ROOTDK_INSTANTIATE(double)
#undef ROOTDK_INSTANTIATE

}  // namespace rootdk::nn
