// The products in double: one plain loop each, for checking gradients.
#include <cstdint>

#include "nn/matmul.h"

namespace rootdk::nn {

void multiply_by_transpose(std::int64_t rows, std::int64_t in, std::int64_t out, const double* x, const double* w,
                           const double* b, double* y) {
  for (std::int64_t r = 0; r < rows; ++r)
    for (std::int64_t o = 0; o < out; ++o) {
      double sum = b != nullptr ? b[o] : 0;
      for (std::int64_t i = 0; i < in; ++i) sum += x[r * in + i] * w[o * in + i];
      y[r * out + o] = sum;
    }
}

void add_product(std::int64_t rows, std::int64_t in, std::int64_t out, const double* d_y, const double* w,
                 double* d_x) {
  for (std::int64_t r = 0; r < rows; ++r)
    for (std::int64_t o = 0; o < out; ++o)
      for (std::int64_t i = 0; i < in; ++i) d_x[r * in + i] += d_y[r * out + o] * w[o * in + i];
}

void add_outer_products(std::int64_t rows, std::int64_t in, std::int64_t out, const double* d_y, const double* x,
                        double* d_w) {
  for (std::int64_t r = 0; r < rows; ++r)
    for (std::int64_t o = 0; o < out; ++o)
      for (std::int64_t i = 0; i < in; ++i) d_w[o * in + i] += d_y[r * out + o] * x[r * in + i];
}

void add_column_sums(std::int64_t rows, std::int64_t out, const double* d_y, double* sum) {
  for (std::int64_t r = 0; r < rows; ++r)
    for (std::int64_t o = 0; o < out; ++o) sum[o] += d_y[r * out + o];
}

}  // namespace rootdk::nn
