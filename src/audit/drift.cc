// Heads of two audits paired by layer and number, those whose σ moved most first.
#include "rootdk/audit/drift.h"

#include <algorithm>
#include <cmath>

#include "base/refuse.h"

namespace rootdk::audit {

namespace {

HeadDrift drift_of(const Attention& attention, const Head& before, const Head& after) {
  HeadDrift out{.kind = attention.kind, .layer = attention.layer, .head = after.head};
  out.sigma_before = before.sigma, out.sigma_after = after.sigma;
  if (before.measured && after.measured) {
    out.ground = theory::Ground::kMeasured;
    out.sigma_before = before.measured->sigma, out.sigma_after = after.measured->sigma;
  } else if (before.on_embeddings && after.on_embeddings) {
    out.ground = theory::Ground::kEmbeddings;
    out.sigma_before = before.on_embeddings->sigma, out.sigma_after = after.on_embeddings->sigma;
  }
  out.growth = out.sigma_after / out.sigma_before;
  out.verdict_before = before.judgement.verdict, out.verdict_before_ground = before.judgement.ground;
  out.verdict_after = after.judgement.verdict, out.verdict_after_ground = after.judgement.ground;
  return out;
}

}  // namespace

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
    for (std::size_t h = 0; h < b.heads.size(); ++h) out.push_back(drift_of(b.attention, a.heads[h], b.heads[h]));
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
