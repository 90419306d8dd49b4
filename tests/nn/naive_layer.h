// Multi-head attention as on a blackboard, forward and backward, for any kind of number. Two kinds are used:
//   double    its gradients are checked against differences of its outputs;
//   Bounded   a double that knows how far off an f32 computation of the same formulas, summed in any order, may be.
// So the layer's tolerance is computed, element by element, from the data it was given.
#pragma once

#include <cmath>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

#include "rootdk/nn/rotary.h"

namespace rootdk::nn::testing {

inline constexpr double kU = 0x1p-24;  // unit roundoff of f32
inline constexpr double kU64 = 0x1p-53;

/// Running error analysis in its probabilistic form (Higham & Mary, "A new approach to probabilistic rounding error
/// analysis", 2019): roundings are independent with mean 0 and at most u, so their effects add as squares. `error` is a
/// standard deviation; a result further off than kDeviations of them happens with probability below
/// 2·exp(−kDeviations²/2) ≈ 3e-14 if the model holds. It is first order, and errors that travel together (one q in all
/// scores of its row) count as independent: the worst-case analysis, which needs no model, comes out 10⁴ times above
/// the errors seen, and would prove nothing.
struct Bounded {
  double value = 0;
  double error = 0;

  Bounded() = default;
  Bounded(double v, double e = 0) : value(v), error(e) {}

  double tolerance() const { return kDeviations * error; }
  static constexpr double kDeviations = 8;
};

inline double square(double x) { return x * x; }

/// One rounding is uniform within ±u|x|, or less: a standard deviation of u|x|/√3.
inline const double kRounding = kU / std::sqrt(3.0);
inline Bounded rounded(double value, double error) { return {value, std::hypot(error, kRounding * value)}; }
inline Bounded operator-(const Bounded& a) { return {-a.value, a.error}; }
inline Bounded operator-(const Bounded& a, const Bounded& b) {
  return rounded(a.value - b.value, std::hypot(a.error, b.error));
}
inline double product_error(const Bounded& a, const Bounded& b) {
  return std::hypot(a.value * b.error, a.error * b.value);
}
inline Bounded operator*(const Bounded& a, const Bounded& b) { return rounded(a.value * b.value, product_error(a, b)); }

inline double value_of(double x) { return x; }
inline double value_of(const Bounded& x) { return x.value; }

/// e^{s − lse}. In f32 this may be 2^{s·log2 e − lse·log2 e}, with three roundings on each side of the exponent (a
/// factor, a product, a sum) and 2^x itself good to 2u.
inline double probability(double s, double lse) { return std::exp(s - lse); }
inline Bounded probability(const Bounded& s, const Bounded& lse) {
  const double p = std::exp(s.value - lse.value);
  const double exponent = std::sqrt(3.0) * kRounding * std::hypot(s.value, lse.value);
  return {p, p * std::hypot(std::hypot(s.error, lse.error), std::hypot(exponent, 2 * kU))};
}

/// m + ln L, where m is exact, with three roundings of each part; the logarithm itself is good to 2u of 1, or of
/// itself.
inline double log_sum(double m, double l) { return m + std::log(l); }
inline Bounded log_sum(double m, const Bounded& l) {
  const double log_l = std::log(l.value), parts = std::sqrt(3.0) * kRounding * std::hypot(m, log_l);
  return {m + log_l, std::hypot(std::hypot(l.error / l.value, parts), 2 * kU)};
}

/// A sum of n products: n + 1 roundings of partial sums, beside what the factors bring. Terms of mixed signs make a
/// random walk, whose partial sums have a mean square below Σ(ab)²; terms of one sign have partial sums below the
/// total.
template <class T>
class Sum;
template <>
class Sum<double> {
 public:
  void add(double a, double b = 1) { total_ += a * b; }
  double total() const { return total_; }

 private:
  double total_ = 0;
};
template <>
class Sum<Bounded> {
 public:
  void add(const Bounded& a, const Bounded& b = 1) {
    value_ += a.value * b.value;
    variance_ += square(product_error(a, b));
    squares_ += square(a.value * b.value);
    n_ += 1;
  }
  Bounded total() const {
    const double partial_square = std::fmax(squares_, square(value_));
    return {value_, std::sqrt(variance_ + (n_ + 1) * square(kRounding) * partial_square)};
  }

 private:
  double value_ = 0, variance_ = 0, squares_ = 0, n_ = 0;
};

struct NaiveConfig {
  std::int64_t batch = 1, len_q = 1, len_kv = 1;
  std::int64_t width = 1, width_kv = 1;
  std::int64_t heads_q = 1, heads_kv = 1, dim_qk = 1, dim_v = 1;
  bool bias_qkv = false, bias_out = false, causal = false, sink = false;
  bool self = false;  ///< x_kv is x_q
  std::optional<Rotary> rotary = {};
  double gathered = 0;  ///< what the gradients of learned things held before
};

/// By name: "x_q", "x_kv", "w_q", "b_q", … "w_o", "b_o", "scale", "sink"; gradients have the names of what they belong
/// to.
template <class T>
using Arrays = std::map<std::string, std::vector<T>>;

template <class T>
class NaiveLayer {
 public:
  NaiveLayer(const NaiveConfig& config, const Arrays<T>& in) : c_(config), in_(in) { forward(); }

  const std::vector<T>& out() const { return out_; }

  /// Gradients of Σ d_out·out.
  Arrays<T> backward(const std::vector<T>& d_out) const;

 private:
  using Index = std::int64_t;
  using Array = std::vector<T>;

  static T& at(Array& a, Index i) { return a[static_cast<std::size_t>(i)]; }
  static const T& at(const Array& a, Index i) { return a[static_cast<std::size_t>(i)]; }

  Index len_kv() const { return c_.self ? c_.len_q : c_.len_kv; }
  Index rows_q() const { return c_.batch * c_.len_q; }
  Index rows_kv() const { return c_.batch * len_kv(); }
  Index offset() const { return len_kv() - c_.len_q; }  // of query positions
  const Array& x_kv() const { return in_.at(c_.self ? "x_q" : "x_kv"); }
  bool visible(Index i, Index j) const { return !c_.causal || j <= i + offset(); }

  // Index of component d of head h in row (b, t) of [batch, length, heads, dim].
  static Index place(Index b, Index t, Index length, Index h, Index heads, Index d, Index dim) {
    return ((b * length + t) * heads + h) * dim + d;
  }

  // y[r][o] = Σ_i x[r][i]·w[o][i] + b[o]
  Array project(const Array& x, Index rows, Index in, Index out, const std::string& name, bool bias) const {
    Array y;
    const Array& w = in_.at("w_" + name);
    for (Index r = 0; r < rows; ++r)
      for (Index o = 0; o < out; ++o) {
        Sum<T> sum;
        for (Index i = 0; i < in; ++i) sum.add(at(x, r * in + i), at(w, o * in + i));
        if (bias) sum.add(at(in_.at("b_" + name), o));
        y.push_back(sum.total());
      }
    return y;
  }

  // Cosines and sines are exact but for one rounding to f32.
  static T constant(double x) {
    if constexpr (std::is_same_v<T, Bounded>) return rounded(x, 0);
    else return x;
  }

  void turn(Array& x, Index length, Index heads, Index first, double direction) const {
    if (!c_.rotary) return;
    const Index dims = c_.rotary->dims == 0 ? c_.dim_qk : c_.rotary->dims;
    const bool split = c_.rotary->pairing == Rotary::Pairing::kHalfSplit;
    for (Index b = 0; b < c_.batch; ++b)
      for (Index t = 0; t < length; ++t)
        for (Index h = 0; h < heads; ++h)
          for (Index i = 0; i < dims / 2; ++i) {
            const double frequency =
                1 / std::pow(c_.rotary->base, 2.0 * static_cast<double>(i) / static_cast<double>(dims));
            const double angle = static_cast<double>(t + first + c_.rotary->first_position) * frequency;
            const T cos = constant(std::cos(angle)), sin = constant(direction * std::sin(angle));
            T& one = at(x, place(b, t, length, h, heads, split ? i : 2 * i, c_.dim_qk));
            T& two = at(x, place(b, t, length, h, heads, split ? i + dims / 2 : 2 * i + 1, c_.dim_qk));
            Sum<T> new_one, new_two;
            new_one.add(one, cos), new_one.add(two, -sin);
            new_two.add(one, sin), new_two.add(two, cos);
            one = new_one.total(), two = new_two.total();
          }
  }

  const T& q_at(Index b, Index h, Index i, Index d) const {
    return at(q_, place(b, i, c_.len_q, h, c_.heads_q, d, c_.dim_qk));
  }
  const T& k_at(Index b, Index h, Index j, Index d) const {
    return at(k_, place(b, j, len_kv(), h / (c_.heads_q / c_.heads_kv), c_.heads_kv, d, c_.dim_qk));
  }
  const T& v_at(Index b, Index h, Index j, Index d) const {
    return at(v_, place(b, j, len_kv(), h / (c_.heads_q / c_.heads_kv), c_.heads_kv, d, c_.dim_v));
  }

  T score(Index b, Index h, Index i, Index j) const {
    Sum<T> dot;
    for (Index d = 0; d < c_.dim_qk; ++d) dot.add(q_at(b, h, i, d), k_at(b, h, j, d));
    return at(in_.at("scale"), h) * dot.total();
  }

  void forward() {
    q_ = project(in_.at("x_q"), rows_q(), c_.width, c_.heads_q * c_.dim_qk, "q", c_.bias_qkv);
    k_ = project(x_kv(), rows_kv(), c_.width_kv, c_.heads_kv * c_.dim_qk, "k", c_.bias_qkv);
    v_ = project(x_kv(), rows_kv(), c_.width_kv, c_.heads_kv * c_.dim_v, "v", c_.bias_qkv);
    turn(q_, c_.len_q, c_.heads_q, offset(), 1);
    turn(k_, len_kv(), c_.heads_kv, 0, 1);

    o_.assign(static_cast<std::size_t>(rows_q() * c_.heads_q * c_.dim_v), T(0.0));
    for (Index b = 0; b < c_.batch; ++b)
      for (Index i = 0; i < c_.len_q; ++i)
        for (Index h = 0; h < c_.heads_q; ++h) {
          const Array p = probabilities(b, h, i);
          for (Index d = 0; d < c_.dim_v && !p.empty(); ++d) {
            Sum<T> sum;
            for (Index j = 0; j < len_kv(); ++j)
              if (visible(i, j)) sum.add(at(p, j), v_at(b, h, j, d));
            at(o_, place(b, i, c_.len_q, h, c_.heads_q, d, c_.dim_v)) = sum.total();
          }
        }
    out_ = project(o_, rows_q(), c_.heads_q * c_.dim_v, c_.width, "o", c_.bias_out);
  }

  // [len_kv] and the sink's, last; empty if there is nothing to see. Hidden keys have 0.
  Array probabilities(Index b, Index h, Index i) const {
    Array s(static_cast<std::size_t>(len_kv()) + 1, T(0.0));
    double m = -HUGE_VAL;
    const auto observe = [&](Index j, const T& x) { at(s, j) = x, m = std::fmax(m, value_of(x)); };
    for (Index j = 0; j < len_kv(); ++j)
      if (visible(i, j)) observe(j, score(b, h, i, j));
    if (c_.sink) observe(len_kv(), at(in_.at("sink"), h));
    if (m == -HUGE_VAL) return {};
    const auto present = [&](Index j) { return j == len_kv() ? c_.sink : visible(i, j); };
    Sum<T> l;
    for (Index j = 0; j <= len_kv(); ++j)
      if (present(j)) l.add(probability(at(s, j), T(m)));
    const T lse = log_sum(m, l.total());
    for (Index j = 0; j <= len_kv(); ++j) at(s, j) = present(j) ? probability(at(s, j), lse) : T(0.0);
    return s;
  }

  NaiveConfig c_;
  const Arrays<T>& in_;
  Array q_, k_, v_, o_, out_;
};

template <class T>
Arrays<T> NaiveLayer<T>::backward(const std::vector<T>& d_out) const {
  const auto sums = [](Index n) { return std::vector<Sum<T>>(static_cast<std::size_t>(n)); };
  const auto totals = [](const std::vector<Sum<T>>& s) {
    Array a;
    for (const Sum<T>& sum : s) a.push_back(sum.total());
    return a;
  };
  Arrays<T> grad;
  // dW[o][i] = Σ_r dy[r][o]·x[r][i] and db[o] = Σ_r dy[r][o], onto what was gathered before
  const auto parameters = [&](const Array& x, const Array& d_y, Index rows, Index in, Index out,
                              const std::string& name, bool bias) {
    auto w = sums(out * in), b = sums(bias ? out : 0);
    for (Sum<T>& sum : w) sum.add(T(c_.gathered));
    for (Sum<T>& sum : b) sum.add(T(c_.gathered));
    for (Index r = 0; r < rows; ++r)
      for (Index o = 0; o < out; ++o) {
        for (Index i = 0; i < in; ++i)
          w[static_cast<std::size_t>(o * in + i)].add(at(d_y, r * out + o), at(x, r * in + i));
        if (bias) b[static_cast<std::size_t>(o)].add(at(d_y, r * out + o));
      }
    grad["w_" + name] = totals(w);
    if (bias) grad["b_" + name] = totals(b);
  };
  // dx[r][i] += Σ_o dy[r][o]·w[o][i]
  const auto input = [&](std::vector<Sum<T>>& d_x, const Array& d_y, Index rows, Index in, Index out,
                         const std::string& name) {
    const Array& w = in_.at("w_" + name);
    for (Index r = 0; r < rows; ++r)
      for (Index o = 0; o < out; ++o)
        for (Index i = 0; i < in; ++i)
          d_x[static_cast<std::size_t>(r * in + i)].add(at(d_y, r * out + o), at(w, o * in + i));
  };

  parameters(o_, d_out, rows_q(), c_.heads_q * c_.dim_v, c_.width, "o", c_.bias_out);
  auto d_o_sums = sums(static_cast<Index>(o_.size()));
  input(d_o_sums, d_out, rows_q(), c_.heads_q * c_.dim_v, c_.width, "o");
  const Array d_o = totals(d_o_sums);

  const Index group = c_.heads_q / c_.heads_kv;
  auto d_q_sums = sums(static_cast<Index>(q_.size())), d_k_sums = sums(static_cast<Index>(k_.size()));
  auto d_v_sums = sums(static_cast<Index>(v_.size())), d_scale = sums(c_.heads_q),
       d_sink = sums(c_.sink ? c_.heads_q : 0);
  for (Sum<T>& sum : d_scale) sum.add(T(c_.gathered));
  for (Sum<T>& sum : d_sink) sum.add(T(c_.gathered));
  for (Index b = 0; b < c_.batch; ++b)
    for (Index i = 0; i < c_.len_q; ++i)
      for (Index h = 0; h < c_.heads_q; ++h) {
        const auto d_o_at = [&](Index d) { return at(d_o, place(b, i, c_.len_q, h, c_.heads_q, d, c_.dim_v)); };
        const Array p = probabilities(b, h, i);
        if (p.empty()) continue;
        Sum<T> delta;  // dO·O
        for (Index d = 0; d < c_.dim_v; ++d)
          delta.add(d_o_at(d), at(o_, place(b, i, c_.len_q, h, c_.heads_q, d, c_.dim_v)));
        if (c_.sink) d_sink[static_cast<std::size_t>(h)].add(-at(p, len_kv()), delta.total());
        for (Index j = 0; j < len_kv(); ++j) {
          if (!visible(i, j)) continue;
          Sum<T> d_p;
          for (Index d = 0; d < c_.dim_v; ++d) {
            d_p.add(d_o_at(d), v_at(b, h, j, d));
            d_v_sums[static_cast<std::size_t>(place(b, j, len_kv(), h / group, c_.heads_kv, d, c_.dim_v))].add(
                at(p, j), d_o_at(d));
          }
          const T d_s = at(p, j) * (d_p.total() - delta.total());
          const T c_d_s = at(in_.at("scale"), h) * d_s;
          for (Index d = 0; d < c_.dim_qk; ++d) {
            const T &q = q_at(b, h, i, d), &k = k_at(b, h, j, d);
            d_q_sums[static_cast<std::size_t>(place(b, i, c_.len_q, h, c_.heads_q, d, c_.dim_qk))].add(c_d_s, k);
            d_k_sums[static_cast<std::size_t>(place(b, j, len_kv(), h / group, c_.heads_kv, d, c_.dim_qk))].add(c_d_s,
                                                                                                                q);
            d_scale[static_cast<std::size_t>(h)].add(d_s * q, k);
          }
        }
      }
  grad["scale"] = totals(d_scale);
  if (c_.sink) grad["sink"] = totals(d_sink);

  Array d_q = totals(d_q_sums), d_k = totals(d_k_sums);
  const Array d_v = totals(d_v_sums);
  turn(d_q, c_.len_q, c_.heads_q, offset(), -1);
  turn(d_k, len_kv(), c_.heads_kv, 0, -1);
  parameters(in_.at("x_q"), d_q, rows_q(), c_.width, c_.heads_q * c_.dim_qk, "q", c_.bias_qkv);
  parameters(x_kv(), d_k, rows_kv(), c_.width_kv, c_.heads_kv * c_.dim_qk, "k", c_.bias_qkv);
  parameters(x_kv(), d_v, rows_kv(), c_.width_kv, c_.heads_kv * c_.dim_v, "v", c_.bias_qkv);
  auto d_x_q = sums(rows_q() * c_.width), d_x_kv = sums(c_.self ? 0 : rows_kv() * c_.width_kv);
  auto& keys_into = c_.self ? d_x_q : d_x_kv;
  input(d_x_q, d_q, rows_q(), c_.width, c_.heads_q * c_.dim_qk, "q");
  input(keys_into, d_k, rows_kv(), c_.width_kv, c_.heads_kv * c_.dim_qk, "k");
  input(keys_into, d_v, rows_kv(), c_.width_kv, c_.heads_kv * c_.dim_v, "v");
  grad["x_q"] = totals(d_x_q);
  if (!c_.self) grad["x_kv"] = totals(d_x_kv);
  return grad;
}

}  // namespace rootdk::nn::testing
