// A head's rows with gain, bias and LayerNorm's mean folded in, and the moments of what they project to.
#include "audit/weights.h"

#include <Eigen/Eigenvalues>
#include <algorithm>
#include <cmath>
#include <utility>

#include "audit/gram.h"
#include "base/bits.h"

namespace rootdk::audit {

namespace {

using Matrix = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

std::int64_t count_not_finite(const std::vector<float>& values) {
  constexpr std::uint32_t kExponent =
      0x7f800000;  // all of it set; compared as an integer, since then it is vectors that are compared
  std::int32_t bad = 0;
  for (const float x : values) bad += (base::bit_cast<std::uint32_t>(x) & kExponent) == kExponent;
  return bad;
}
std::int64_t count_not_finite(const std::vector<double>& values) {
  return std::count_if(values.begin(), values.end(), [](double x) { return !std::isfinite(x); });
}

// y = W(γ∘z + β) + b: the bias first, with the weights as they came; then the gain; then, for LayerNorm, the mean
// direction goes. Returns what G is to be multiplied by.
double fold(HeadRows& head, const NormPlace& norm, const std::vector<double>* gain, const std::vector<double>* bias) {
  const auto width = static_cast<double>(head.width);
  std::vector<float> factors;
  if (gain != nullptr)
    for (const double x : *gain) factors.push_back(static_cast<float>(x + norm.gain_offset));
  for (std::int64_t r = 0; r < head.rows; ++r) {
    float* const row = head.weight.data() + r * head.stride;
    if (bias != nullptr) {
      double sum = 0;
      for (std::int64_t i = 0; i < head.width; ++i)
        sum += static_cast<double>(row[i]) * (*bias)[static_cast<std::size_t>(i)];
      head.bias[static_cast<std::size_t>(r)] += sum;
    }
    for (std::size_t i = 0; i < factors.size(); ++i) row[i] *= factors[i];
    if (norm.kind != theory::Norm::Kind::kLayer || head.width < 2) continue;
    double mean = 0;
    for (std::int64_t i = 0; i < head.width; ++i) mean += static_cast<double>(row[i]);
    mean /= width;
    for (std::int64_t i = 0; i < head.width; ++i) row[i] = static_cast<float>(static_cast<double>(row[i]) - mean);
  }
  return norm.kind == theory::Norm::Kind::kLayer && head.width > 1 ? width / (width - 1) : 1;
}

// Two parts that do not correlate, one behind the other.
theory::Projected joined(const theory::Projected& a, const theory::Projected& b) {
  theory::Projected out;
  out.dim = a.dim + b.dim;
  const auto blocks = [&](const std::vector<double>& x, const std::vector<double>& y) {
    Matrix m = Matrix::Zero(out.dim, out.dim);
    m.topLeftCorner(a.dim, a.dim) = Eigen::Map<const Matrix>(x.data(), a.dim, a.dim);
    m.bottomRightCorner(b.dim, b.dim) = Eigen::Map<const Matrix>(y.data(), b.dim, b.dim);
    return std::vector<double>(m.data(), m.data() + m.size());
  };
  const auto one_behind_the_other = [](std::vector<double> x, const std::vector<double>& y) {
    x.insert(x.end(), y.begin(), y.end());
    return x;
  };
  out.covariance = blocks(a.covariance, b.covariance);
  out.gram = out.covariance;
  out.mean = one_behind_the_other(a.mean, b.mean);
  out.offset = one_behind_the_other(a.offset, b.offset);
  // ‖(W_a x, W_b y)‖ ≤ max(σ₁(W_a), σ₁(W_b))·‖(x, y)‖.
  if (a.input_bound && b.input_bound)
    out.input_bound = std::sqrt(*a.input_bound * *a.input_bound + *b.input_bound * *b.input_bound);
  return out;
}

void scale_leading(theory::Projected& p, std::int64_t count, double factor) {
  if (factor == 1) return;
  const auto of = [&](std::int64_t i) { return i < count ? factor : 1.0; };
  for (std::int64_t i = 0; i < p.dim; ++i) {
    const auto row = static_cast<std::size_t>(i);
    p.mean[row] *= of(i);
    p.offset[row] *= of(i);
    if (!p.norm_gain.empty()) p.norm_gain[row] *= of(i);
    for (std::int64_t j = 0; j < p.dim; ++j) {
      const auto at = static_cast<std::size_t>(i * p.dim + j);
      p.covariance[at] *= of(i) * of(j);
      p.gram[at] *= of(i) * of(j);
    }
  }
}

// What QK-norm makes of it. Means are rare before a QK-norm; they are taken to shrink as the root mean square does.
theory::Projected qk_normalised(const theory::Projected& before, const theory::Norm& norm) {
  theory::Projected out = theory::normalised(norm, before.dim);
  const auto d = static_cast<std::size_t>(before.dim);
  const bool has_mean = std::any_of(before.mean.begin(), before.mean.end(), [](double x) { return x != 0; });
  double total = 0;
  for (std::size_t i = 0; i < d; ++i) total += before.covariance[i * d + i] + before.mean[i] * before.mean[i];
  if (!(total > 0)) return out;
  std::vector<double> moment;
  if (has_mean) {
    const double shrink = static_cast<double>(before.dim) / total;
    moment = before.covariance;
    for (double& x : moment) x *= shrink;
    for (std::size_t i = 0; i < d; ++i) out.mean[i] = before.mean[i] * std::sqrt(shrink);
  } else {
    moment = normalised_moment(before.covariance, before.dim);
  }
  const auto gain = [&](std::size_t i) { return norm.gain.empty() ? 1.0 : norm.gain[i] + norm.gain_offset; };
  for (std::size_t i = 0; i < d; ++i) {
    if (has_mean) out.mean[i] *= gain(i);
    for (std::size_t j = 0; j < d; ++j) out.covariance[i * d + j] = moment[i * d + j] * gain(i) * gain(j);
  }
  return out;
}

}  // namespace

std::vector<double> normalised_moment(const std::vector<double>& covariance, std::int64_t dim) {
  const Eigen::SelfAdjointEigenSolver<Matrix> solver(Eigen::Map<const Matrix>(covariance.data(), dim, dim));
  Eigen::VectorXd values = solver.eigenvalues().cwiseMax(0);
  values *= static_cast<double>(dim) / values.sum();
  // The integrand over ln t falls exponentially on both sides and is analytic in a strip of half-width π, so the
  // trapezoidal rule's error is e^{−2π²/h}.
  constexpr double kStep = 0.5, kBegin = -40, kEnd = 90;
  Eigen::VectorXd shares = Eigen::VectorXd::Zero(dim);
  for (double y = kBegin; y < kEnd; y += kStep) {
    const double t = std::exp(y);
    const Eigen::ArrayXd denominators = 1 + 2 * t * values.array();
    const double weight = std::exp(y - denominators.log().sum() / 2);
    if (y > 0 && weight < 1e-20) break;
    shares.array() += weight * values.array() / denominators;
  }
  shares *= static_cast<double>(dim) / shares.sum();
  const Matrix moment = solver.eigenvectors() * shares.asDiagonal() * solver.eigenvectors().transpose();
  return {moment.data(), moment.data() + moment.size()};
}

LayerWeights::LayerWeights(const checkpoint::Checkpoint& checkpoint, const Attention& attention)
    : checkpoint_(checkpoint), attention_(attention) {
  for (const Which which : {Which::kQueries, Which::kKeys}) {
    for (const Part& part : parts(which)) {
      for (const std::string& tensor : {part.bias, part.norm.gain, part.norm.bias}) keep(tensor);
      if (part.transposed && !transposed_.contains(part.weight))
        transposed_[part.weight] = checkpoint_.read_f32(part.weight);
    }
    keep(qk_norm(which).gain);
    keep(qk_norm(which).bias);
  }
}

void LayerWeights::keep(const std::string& tensor) {
  if (!tensor.empty() && !vectors_.contains(tensor)) vectors_[tensor] = checkpoint_.read_f64(tensor);
}

HeadRows LayerWeights::rows_of(const Part& part, std::int64_t head) const {
  HeadRows out;
  out.rows = part.rows;
  out.width = part.width;
  out.stride = row_stride(part.width);
  out.weight.assign(static_cast<std::size_t>(out.rows * out.stride), 0);
  out.bias.assign(static_cast<std::size_t>(out.rows), 0);
  const std::int64_t first = part.row_of(head);
  const auto place = [&](std::int64_t row) {
    return (row - part.turn + part.rows) % part.rows;
  };  // of a stored row, here
  if (part.transposed) {
    const std::vector<float>& all = transposed_.at(part.weight);
    const std::int64_t columns = static_cast<std::int64_t>(all.size()) / part.width;
    for (std::int64_t i = 0; i < part.width; ++i)
      for (std::int64_t r = 0; r < part.rows; ++r)
        out.weight[static_cast<std::size_t>(place(r) * out.stride + i)] =
            all[static_cast<std::size_t>(i * columns + first + r)];
  } else if (out.stride == out.width && part.turn == 0) {
    checkpoint_.read_f32(part.weight, first, part.rows, out.weight);
  } else {
    std::vector<float> packed(static_cast<std::size_t>(part.rows * part.width));
    checkpoint_.read_f32(part.weight, first, part.rows, packed);
    for (std::int64_t r = 0; r < part.rows; ++r)
      std::copy_n(packed.data() + r * part.width, part.width, out.weight.data() + place(r) * out.stride);
  }
  if (!part.bias.empty()) {
    const std::vector<double>& all = vectors_.at(part.bias);
    for (std::int64_t r = 0; r < part.rows; ++r)
      out.bias[static_cast<std::size_t>(place(r))] = all[static_cast<std::size_t>(first + r)];
  }
  return out;
}

theory::Projected LayerWeights::projected(const Part& part, std::int64_t head, std::int64_t& not_finite) const {
  HeadRows rows = rows_of(part, head);
  const std::vector<double>* const gain = part.norm.gain.empty() ? nullptr : &vector(part.norm.gain);
  const std::vector<double>* const bias = part.norm.bias.empty() ? nullptr : &vector(part.norm.bias);
  not_finite += count_not_finite(rows.weight) + count_not_finite(rows.bias);
  for (const auto* values : {gain, bias})
    if (values != nullptr) not_finite += count_not_finite(*values);
  theory::Projected out;
  if (not_finite > 0) return out;
  const double factor = fold(rows, part.norm, gain, bias);
  out.dim = part.rows;
  out.gram.resize(static_cast<std::size_t>(out.dim * out.dim));
  gram(rows.rows, rows.stride, rows.weight.data(), out.gram.data());
  for (double& x : out.gram) x *= factor;
  out.covariance = out.gram;
  out.mean = out.offset = std::move(rows.bias);
  // A folded LayerNorm's input has length √(D − 1): theory/projection.cc.
  if (part.norm.kind != theory::Norm::Kind::kNone)
    out.input_bound = std::sqrt(static_cast<double>(part.width) / factor);
  return out;
}

Side LayerWeights::side(Which which, std::int64_t head) const {
  Side out;
  bool first = true;
  for (const Part& part : parts(which)) {
    theory::Projected next = projected(part, head, out.not_finite);
    if (out.not_finite > 0) continue;
    out.projected = first ? std::move(next) : joined(out.projected, next);
    first = false;
  }
  if (out.not_finite == 0)
    out.overflows = count_not_finite(out.projected.covariance) + count_not_finite(out.projected.mean) > 0;
  if (const NormPlace& place = qk_norm(which); place.kind != theory::Norm::Kind::kNone && out.finite()) {
    theory::Norm norm;
    norm.kind = place.kind;
    norm.gain_offset = place.gain_offset;
    if (!place.gain.empty()) norm.gain = vector(place.gain);
    if (!place.bias.empty()) norm.bias = vector(place.bias);
    out.not_finite = std::count_if(norm.gain.begin(), norm.gain.end(), [](double x) { return !std::isfinite(x); });
    if (out.not_finite == 0) out.projected = qk_normalised(out.projected, norm);
  }
  if (!out.finite()) out.projected = {};
  else
    scale_leading(out.projected, static_cast<std::int64_t>(2 * attention_.rotary.frequencies.size()),
                  attention_.rotary.magnitude);
  return out;
}

}  // namespace rootdk::audit
