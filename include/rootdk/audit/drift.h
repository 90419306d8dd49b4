// Two checkpoints of one model: what training did to the scale of each head.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "rootdk/audit/findings.h"
#include "rootdk/export.h"

namespace rootdk::audit {

struct HeadDrift {
  std::string kind;
  std::int64_t layer = 0, head = 0;
  theory::Ground ground = theory::Ground::kWeights;  ///< what both σ stand on: the surest that both audits have
  double sigma_before = 0, sigma_after = 0;
  double growth = 0;  ///< after/before
  // Each on the surest ground of its own audit.
  theory::Verdict verdict_before = theory::Verdict::kUnknown, verdict_after = theory::Verdict::kUnknown;
  theory::Ground verdict_before_ground = theory::Ground::kWeights, verdict_after_ground = theory::Ground::kWeights;
};

/// Those that moved most come first, up or down. Refuses models of other layers or heads.
ROOTDK_API std::vector<HeadDrift> drift(const Audit& before, const Audit& after);

}  // namespace rootdk::audit
