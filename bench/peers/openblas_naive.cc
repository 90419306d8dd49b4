// Attention as most people write it: sgemm, softmax, sgemm, with the whole score matrix in memory. Heads are spread
// over threads where there are enough of them, else BLAS has the threads. OpenBLAS comes as a function pointer, so that
// the one timed is the newest wheel and not what the distribution linked.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

namespace {

enum : int { kRowMajor = 101, kNoTrans = 111, kTrans = 112 };  // cblas.h

using Sgemm = void (*)(int order, int trans_a, int trans_b, int m, int n, int k, float alpha, const float* a, int lda,
                       const float* b, int ldb, float beta, float* c, int ldc);

void softmax(float* row, std::int64_t visible, std::int64_t n) {
  float top = std::numeric_limits<float>::lowest(), sum = 0;
  for (std::int64_t j = 0; j < visible; ++j) top = std::max(top, row[j]);
  for (std::int64_t j = 0; j < visible; ++j) {
    row[j] = std::exp(row[j] - top);
    sum += row[j];
  }
  for (std::int64_t j = 0; j < visible; ++j) row[j] /= sum;
  std::fill(row + visible, row + n, 0.0f);
}

}  // namespace

extern "C" {

struct Sizes {
  std::int64_t heads, group, len_q, len_kv, dim;  // heads: batch · heads_q
  std::int32_t causal, spread_heads;
};

// scores: [threads or 1, len_q, len_kv]
void openblas_naive(const Sizes* sizes, Sgemm sgemm, const float* q, const float* k, const float* v, float* o,
                    float* scores, int threads) {
  const Sizes s = *sizes;
  const int t = static_cast<int>(s.len_q), n = static_cast<int>(s.len_kv), d = static_cast<int>(s.dim);
  const float c = 1.0f / std::sqrt(static_cast<float>(d));
#pragma omp parallel for schedule(static, 1) num_threads(threads) if (s.spread_heads)
  for (std::int64_t h = 0; h < s.heads; ++h) {
    const float *qh = q + h * t * d, *kh = k + h / s.group * n * d, *vh = v + h / s.group * n * d;
    float* p = scores + (s.spread_heads ? h % threads : 0) * t * n;
    sgemm(kRowMajor, kNoTrans, kTrans, t, n, d, c, qh, d, kh, d, 0.0f, p, n);
#pragma omp parallel for num_threads(threads) if (!s.spread_heads)
    for (std::int64_t i = 0; i < t; ++i) softmax(p + i * n, s.causal ? std::min<std::int64_t>(i + 1, n) : n, n);
    sgemm(kRowMajor, kNoTrans, kNoTrans, t, d, n, 1.0f, p, n, vh, d, 0.0f, o + h * t * d, d);
  }
}

}  // extern "C"
