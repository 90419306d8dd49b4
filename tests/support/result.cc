// Whether two results are equal number by number, a NaN being equal to a NaN.
#include <cmath>

#include "support/run_case.h"

namespace rootdk::test {

namespace {

bool same(const std::vector<double>& a, const std::vector<double>& b) {
  if (a.size() != b.size()) return false;
  for (std::size_t i = 0; i < a.size(); ++i)
    if (!(a[i] == b[i] || (std::isnan(a[i]) && std::isnan(b[i])))) return false;
  return true;
}

}  // namespace

bool Result::same_as(const Result& r) const {
  return same(o, r.o) && same(lse, r.lse) && same(raw_max, r.raw_max) && same(score_max, r.score_max) &&
         same(p_max, r.p_max) && same(d_q, r.d_q) && same(d_k, r.d_k) && same(d_v, r.d_v) && same(d_scale, r.d_scale) &&
         same(d_bias, r.d_bias) && same(d_sink, r.d_sink) && same(d_log_n_gain, r.d_log_n_gain) &&
         same(d_log_n_offset, r.d_log_n_offset);
}

}  // namespace rootdk::test
