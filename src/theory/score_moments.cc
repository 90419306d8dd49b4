// Covariances of q and k, centred first, and the inner products of them that the variances are.
#include "rootdk/theory/score_moments.h"

#include "theory/matrix.h"
#include "theory/refuse.h"

namespace rootdk::theory {

namespace {

ConstMatrixMap rows_of(const char* name, std::span<const double> values, std::int64_t dim) {
  const auto size = static_cast<std::int64_t>(values.size());
  if (size == 0 || size % dim != 0) refuse("{}: {} values, but rows of {} are wanted", name, size, dim);
  return ConstMatrixMap(values.data(), size / dim, dim);
}

}  // namespace

ScoreMoments score_moments(std::span<const double> q, std::span<const double> k, std::int64_t dim_qk) {
  want_at_least_1("dim_qk", dim_qk);
  const ConstMatrixMap queries = rows_of("q", q, dim_qk), keys = rows_of("k", k, dim_qk);
  const Vector query_mean = queries.colwise().mean(), key_mean = keys.colwise().mean();
  // Centred before multiplying: KᵀK/S − k̄k̄ᵀ would cancel.
  const Matrix centred_q = queries.rowwise() - query_mean.transpose(),
               centred_k = keys.rowwise() - key_mean.transpose();
  const Matrix query_covariance = gram(centred_q.transpose()) / static_cast<double>(queries.rows());
  const Matrix key_covariance = gram(centred_k.transpose()) / static_cast<double>(keys.rows());

  ScoreMoments out;
  out.mean = query_mean.dot(key_mean);
  // ⟨QᵀQ/T, ·⟩ in its two parts, Cov(Q) and q̄q̄ᵀ.
  out.within_row_variance = inner(query_covariance, key_covariance) + form(key_covariance, query_mean);
  out.total_variance = out.within_row_variance + form(query_covariance, key_mean);
  out.second_moment = out.total_variance + out.mean * out.mean;
  return out;
}

}  // namespace rootdk::theory
