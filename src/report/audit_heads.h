// The heads of an audit with where they are, for those who speak of them.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "report/sentences.h"
#include "rootdk/audit.h"

namespace rootdk::report {

/// A head and where it is.
struct HeadPlace {
  const audit::Layer* layer;
  const audit::Head* head;
};

inline std::vector<HeadPlace> all_heads(const audit::Audit& audit) {
  std::vector<HeadPlace> out;
  for (const audit::Layer& layer : audit.layers)
    for (const audit::Head& head : layer.heads) out.push_back({&layer, &head});
  return out;
}

/// Whether any head is such.
template <class Is>
bool any_head(const audit::Audit& audit, const Is& is) {
  const std::vector<HeadPlace> all = all_heads(audit);
  return std::any_of(all.begin(), all.end(), [&](const HeadPlace& place) { return is(*place.head); });
}

/// The most serious first; of the same verdict, those furthest from a spread of 1.
std::vector<HeadPlace> worst_first(const audit::Audit& audit);

/// "3.1"; "cross 3.1" where a model has several kinds of attention.
std::string head_name(const audit::Audit& audit, const HeadPlace& place);

}  // namespace rootdk::report
