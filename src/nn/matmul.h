// The three matrix products of a linear layer, on row-major arrays: f32 over threads, f64 by plain loops, to check f32
// by.
//
// The result is cut in tiles of a fixed size, each computed by one thread over the whole inner axis. Threads share out
// the tiles, so the order of operations on any element depends on the sizes only, never on the number of threads.
#pragma once

#include <cstdint>

namespace rootdk::nn {

/// y [rows, out] ← b + x [rows, in]·wᵀ, w [out, in]; b [out] may be null.
void multiply_by_transpose(std::int64_t rows, std::int64_t in, std::int64_t out, const float* x, const float* w,
                           const float* b, float* y);
void multiply_by_transpose(std::int64_t rows, std::int64_t in, std::int64_t out, const double* x, const double* w,
                           const double* b, double* y);

/// d_x [rows, in] ← d_x + d_y [rows, out]·w, w [out, in].
void add_product(std::int64_t rows, std::int64_t in, std::int64_t out, const float* d_y, const float* w, float* d_x);
void add_product(std::int64_t rows, std::int64_t in, std::int64_t out, const double* d_y, const double* w, double* d_x);

/// d_w [out, in] ← d_w + d_yᵀ·x, d_y [rows, out], x [rows, in].
void add_outer_products(std::int64_t rows, std::int64_t in, std::int64_t out, const float* d_y, const float* x,
                        float* d_w);
void add_outer_products(std::int64_t rows, std::int64_t in, std::int64_t out, const double* d_y, const double* x,
                        double* d_w);

/// sum [out] ← sum + Σ over rows of d_y [rows, out], in double, rows ascending.
void add_column_sums(std::int64_t rows, std::int64_t out, const float* d_y, float* sum);
void add_column_sums(std::int64_t rows, std::int64_t out, const double* d_y, double* sum);

}  // namespace rootdk::nn
