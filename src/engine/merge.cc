// Two attention results over different keys, merged: the monoid of row states seen from outside, where only (o, lse) is
// left.
#include <algorithm>
#include <cmath>
#include <limits>

#include "base/element.h"
#include "base/validate.h"
#include "rootdk/attention.h"

namespace rootdk {

void merge(const Tensor& o, const Tensor& lse, const ConstTensor& other_o, const ConstTensor& other_lse) {
  base::check_merge(o, lse, other_o, other_lse);
  for (const std::int64_t size : o.shape)
    if (size == 0) return;
  constexpr double kNothing = -std::numeric_limits<double>::infinity();
  for (std::int64_t b = 0; b < o.shape[0]; ++b)
    for (std::int64_t h = 0; h < o.shape[1]; ++h)
      for (std::int64_t i = 0; i < o.shape[2]; ++i) {
        const double mine = base::read(lse, b, h, i, 0), theirs = base::read(other_lse, b, h, i, 0);
        const double high = std::max(mine, theirs);
        if (mine == kNothing && theirs == kNothing) continue;  // neither saw anything: o is 0 and stays so
        const double total = high + std::log(std::exp(mine - high) + std::exp(theirs - high));
        const double my_share = std::exp(mine - total), their_share = std::exp(theirs - total);
        for (std::int64_t d = 0; d < o.shape[3]; ++d)
          base::write(o, b, h, i, d,
                      my_share * base::read(o, b, h, i, d) + their_share * base::read(other_o, b, h, i, d));
        base::write(lse, b, h, i, 0, total);
      }
}

}  // namespace rootdk
