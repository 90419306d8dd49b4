// Predictions: plain numbers in, a dictionary of numbers out.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/vector.h>

#include "arrays.h"
#include "bindings.h"
#include "rootdk/theory.h"

namespace rootdk::python {

namespace {

using Doubles = nb::ndarray<const double, nb::c_contig, nb::device::cpu>;

std::span<const double> span_of(const std::optional<Doubles>& array) {
  if (!array) return {};
  return {array->data(), array->size()};
}

nb::dict dict_of(const theory::GaussianSoftmax& g, double p_max) {
  nb::dict out;
  out["entropy"] = g.entropy;
  out["log_z"] = g.log_z;
  out["sum_p2"] = g.sum_p2;
  out["trace_j"] = g.trace_j;
  out["frobenius_j"] = g.frobenius_j;
  out["p_max"] = p_max;
  return out;
}

nb::dict gaussian(double sigma, double keys, std::optional<std::int64_t> dim_qk) {
  theory::GaussianSoftmax g;
  double p_max = 0;
  {
    const nb::gil_scoped_release release;
    g = dim_qk ? theory::gaussian_softmax(sigma, keys, *dim_qk) : theory::gaussian_softmax(sigma, keys);
    p_max = dim_qk ? theory::gaussian_p_max(sigma, keys, *dim_qk) : theory::gaussian_p_max(sigma, keys);
  }
  return dict_of(g, p_max);
}

nb::dict softmax_row(const std::vector<double>& scores) {
  const theory::SoftmaxRow row = theory::softmax_row(scores);
  const std::vector<std::size_t> shape = {scores.size()};
  nb::dict out;
  out["exponentials"] = numpy_array(row.exponentials, shape);
  out["sum"] = row.sum;
  out["probabilities"] = numpy_array(row.probabilities, shape);
  out["complements"] = numpy_array(row.complements, shape);
  out["log_z"] = row.log_z;
  out["mean_score"] = row.mean_score;
  out["entropy"] = row.entropy;
  out["p_max"] = row.p_max;
  out["sum_p2"] = row.sum_p2;
  out["trace_j"] = row.trace_j;
  out["frobenius_j"] = row.frobenius_j;
  return out;
}

nb::dict score_moments(const Doubles& q, const Doubles& k, std::int64_t dim_qk) {
  const theory::ScoreMoments s = theory::score_moments({q.data(), q.size()}, {k.data(), k.size()}, dim_qk);
  nb::dict out;
  out["mean"] = s.mean;
  out["second_moment"] = s.second_moment;
  out["total_variance"] = s.total_variance;
  out["within_row_variance"] = s.within_row_variance;
  return out;
}

nb::dict head(const Doubles& w_q, const Doubles& w_k, const std::optional<Doubles>& b_q,
              const std::optional<Doubles>& b_k, std::int64_t dim_qk, double scale,
              const std::optional<Doubles>& frequencies, bool interleaved, std::int64_t context) {
  theory::Projection q, k;
  q.weight = {w_q.data(), w_q.size()};
  q.bias = span_of(b_q);
  k.weight = {w_k.data(), w_k.size()};
  k.bias = span_of(b_k);
  theory::Meeting meeting;
  meeting.scale = scale;
  meeting.context = context;
  meeting.rotation.frequencies = span_of(frequencies);
  if (interleaved) meeting.rotation.pairing = theory::Rotation::Pairing::kInterleaved;
  const theory::HeadTheory h = theory::head_theory(theory::project(q, dim_qk), theory::project(k, dim_qk), meeting);
  nb::dict out;
  out["mean"] = h.mean;
  out["within_row_variance"] = h.within_row_variance;
  out["total_variance"] = h.total_variance;
  out["divisor"] = h.divisor;
  out["divisor_over_sqrt_dim"] = h.divisor_over_sqrt_dim;
  out["sigma"] = h.sigma;
  out["effective_rank"] = h.effective_rank;
  out["sigma_q"] = h.sigma_q;
  out["sigma_k"] = h.sigma_k;
  out["query_mean_norm"] = h.query_mean_norm;
  out["key_mean_norm"] = h.key_mean_norm;
  out["alignment"] = h.alignment;
  return out;
}

}  // namespace

void bind_theory(nb::module_& m) {
  using nb::arg;
  nb::module_ t = m.def_submodule("theory");
  t.def("dot_product_variance", [](std::int64_t dim, double mq, double vq, double mk, double vk) {
    return theory::dot_product_variance(dim, {mq, vq}, {mk, vk});
  });
  t.def("unit_variance_divisor", [](std::int64_t dim, double mq, double vq, double mk, double vk) {
    return theory::unit_variance_divisor(dim, {mq, vq}, {mk, vk});
  });
  t.def("critical_sigma", &theory::critical_sigma);
  t.def("gaussian_softmax", &gaussian, arg("sigma"), arg("keys"), arg("dim_qk").none());
  t.def("softmax_row", &softmax_row);
  t.def("score_moments", &score_moments);
  t.def("head", &head, arg("w_q"), arg("w_k"), arg("b_q").none(), arg("b_k").none(), arg("dim_qk"), arg("scale"),
        arg("frequencies").none(), arg("interleaved"), arg("context"));
  t.def("stein_ratio", [](double score_within_row_variance, double mean_score, double sum_p2) {
    return theory::stein_ratio({score_within_row_variance, mean_score, sum_p2});
  });
}

}  // namespace rootdk::python
