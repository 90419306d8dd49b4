// Heads of two audits paired by layer and number, those whose σ moved most first.
#include "rootdk/audit/drift.h"

#include <algorithm>
#include <cmath>

#include "base/refuse.h"

namespace rootdk::audit {

std::vector<HeadDrift> drift(const Audit& before, const Audit& after) {
  if (before.layers.size() != after.layers.size())
    base::refuse("against: the earlier checkpoint has {} layers, but this one {}", before.layers.size(),
                 after.layers.size());
  std::vector<HeadDrift> out;
  for (std::size_t i = 0; i < after.layers.size(); ++i) {
    const Layer &a = before.layers[i], &b = after.layers[i];
    if (a.attention.kind != b.attention.kind || a.heads.size() != b.heads.size())
      base::refuse("against: layer {} of the earlier checkpoint has {} heads of {} attention, but here {} of {}",
                   b.attention.layer, a.heads.size(), a.attention.kind, b.heads.size(), b.attention.kind);
    for (std::size_t h = 0; h < b.heads.size(); ++h)
      out.push_back({b.attention.kind, b.attention.layer, b.heads[h].head, a.heads[h].sigma, b.heads[h].sigma,
                     b.heads[h].sigma / a.heads[h].sigma, a.heads[h].judgement.verdict, b.heads[h].judgement.verdict});
  }
  // What cannot be compared (a σ of 0 or NaN) comes first: it is the largest news.
  const auto moved = [](const HeadDrift& d) {
    const double distance = std::fabs(std::log(d.growth));
    return std::isnan(distance) ? HUGE_VAL : distance;
  };
  std::stable_sort(out.begin(), out.end(), [&](const HeadDrift& x, const HeadDrift& y) { return moved(x) > moved(y); });
  return out;
}

}  // namespace rootdk::audit
