// What is wrong with a head, if anything, and what would mend it: a code, and plain words. From measured statistics
// (rootdk/stats.h), or from what theory expects of a head that never ran (rootdk/theory/head.h).
//
// Every symptom has one threshold, and all thresholds are in one place, below. Several symptoms may hold; the verdict
// is the most serious of them.
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "rootdk/export.h"
#include "rootdk/stats.h"
#include "rootdk/tensor.h"
#include "rootdk/theory/head.h"

namespace rootdk::theory {

/// From harmless to serious.
enum class Verdict : std::uint8_t {
  kUnknown,    ///< too little was measured to say
  kSoft,       ///< none of the following
  kOutliers,   ///< σ is large, yet no few keys take most: the spread lies where softmax does not see it
  kSink,       ///< the sink takes most of the probability
  kSharp,      ///< σ comes near σ_c
  kUniform,    ///< all keys get the same: the head does not look at anything
  kFrozen,     ///< one key takes all, and almost no gradient comes back
  kExploding,  ///< raw scores so large that the dtype rounds differences away that softmax would see
  kNotFinite,  ///< NaN or Inf
};

/// All of them, from harmless to serious.
inline constexpr std::array kVerdicts = {Verdict::kUnknown, Verdict::kSoft,      Verdict::kOutliers,
                                         Verdict::kSink,    Verdict::kSharp,     Verdict::kUniform,
                                         Verdict::kFrozen,  Verdict::kExploding, Verdict::kNotFinite};

/// "unknown", "soft", "outliers", "sink", "sharp", "uniform", "frozen", "exploding", "not_finite".
ROOTDK_API const char* name_of(Verdict verdict);

/// What a judgement stands on, from the surest.
enum class Ground : std::uint8_t {
  kMeasured,    ///< scores that were computed
  kEmbeddings,  ///< the weights, if the inputs of every layer were like the model's own normalised embeddings
  kWeights,     ///< the weights alone, if inputs were isotropic
};

/// "measured", "embeddings", "weights".
ROOTDK_API const char* name_of(Ground ground);

/// Where each verdict begins: strictly beyond the number. σ_c = √(2 ln n) is where Gaussian scores freeze.
struct Thresholds {
  double uniform = 0.01;       ///< uniform: H > ln n − this
  double sharp = 0.5;          ///< sharp: σ > this·σ_c
  double frozen = 1;           ///< frozen: σ > this·σ_c …
  double frozen_p_max = 0.99;  ///< … or the median row gives one key more than this
  double sink = 0.5;           ///< sink: its mean mass
  /// Exploding: u·|max|, the most that rounding a raw score can move it. e to this is what that does to a probability:
  /// 10 %. u is 2⁻⁹ for bf16 and 2⁻¹¹ for f16, so it begins at 51.2 and 204.8. f32 and f64 have no such threshold: u =
  /// 2⁻²⁴ would put it at 1.7 million, and scores freeze long before.
  double rounding = 0.1;
  double f16_max =
      16'376;  ///< exploding, f16 only: |max|; a quarter of the largest f16, beyond which sums of products overflow
  double not_finite =
      1e-12;  ///< not finite: share of rows. Never met by one row in a pass; what decay has left of one long ago is
  /// σ speaks of scores that are roughly Gaussian. A bias of −10⁹ for a mask makes it enormous, and softmax does not
  /// care. So where σ is beyond sharp or frozen, the measured Σp² must be at least that of Gaussian scores with this
  /// share of the spread where that verdict begins; otherwise Σp² is believed, and that is outliers. (Σp² says how few
  /// keys take most, however many lie far below.)
  double outliers = 0.7;
};

/// What a judgement is based on, of one head. NaN means unknown; what needs it is then not judged.
struct Evidence {
  static constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();

  // What softmax saw.
  double rows = kUnknown;        ///< that see at least two keys; 0: there is nothing to judge
  double keys = kUnknown;        ///< n, at least 2: the geometric mean over those rows of the keys they see
  double sigma = kUnknown;       ///< standard deviation of scores within a row
  double entropy = kUnknown;     ///< mean H, in nats, the sink counted as a key; unknown: predicted from sigma
  double sum_p2 = kUnknown;      ///< mean Σp²
  double mean_score = kUnknown;  ///< mean of Σ p s, less the row's own mean score: for Stein's ratio
  double mean_p_max = kUnknown, median_p_max = kUnknown;
  double sink = 0;         ///< mean probability that the sink takes
  double not_finite = 0;   ///< share of all rows; from weights: 1 if there is no number to say
  bool overflows = false;  ///< from weights that are finite: only their products are not
  // Where the scores come from.
  DType dtype = DType::kF32;    ///< in which q and k come or scores are kept, whichever is narrower
  double raw_max = kUnknown;    ///< the largest |c·q·k|
  double raw_sigma = kUnknown;  ///< standard deviation of c·q·k within a row, before cap and bias
  double dim_qk = kUnknown;
  double scale = kUnknown;              ///< |c|; root mean square where it depends on the query
  double sigma_q = kUnknown;            ///< root mean square of q's components
  double sigma_k = kUnknown;            ///< the same of k's, each about its mean over the keys
  double key_mean_norm = kUnknown;      ///< length of the mean key
  double alignment = kUnknown;          ///< Var(q·k) within rows over dim·σ_q²·σ_k²
  double expected_sigma = kUnknown;     ///< what the weights let one expect sigma to be
  double predicted_entropy = kUnknown;  ///< of Gaussian scores of this spread, for those who have it; unknown: computed
  Ground ground = Ground::kMeasured;
};

/// What statistics do not say about themselves.
struct Setting {
  DType dtype = DType::kF32;                   ///< see Evidence::dtype
  double dim_qk = Evidence::kUnknown;          ///< known from full statistics that have causes
  double scale = Evidence::kUnknown;           ///< the same
  double expected_sigma = Evidence::kUnknown;  ///< HeadTheory::sigma
};

/// Measured. At StatsLevel::kBasic only maxima, p_max and what is not finite are known.
template <class Count>
ROOTDK_API Evidence evidence_of(const HeadStatsOf<Count>& head, const Setting& setting = {});

/// Expected of a head that would see `keys` keys, from its weights alone; what explodes is not known then.
ROOTDK_API Evidence evidence_of(const HeadTheory& head, double keys, double dim_qk, double scale);

struct Judgement {
  Verdict verdict = Verdict::kUnknown;
  std::vector<Verdict> codes = {Verdict::kUnknown};  ///< all that hold, the most serious first; never empty
  Ground ground = Ground::kMeasured;                 ///< of the evidence

  double keys = Evidence::kUnknown;
  double sigma = Evidence::kUnknown;
  double sigma_c = Evidence::kUnknown;  ///< √(2 ln n)
  double entropy = Evidence::kUnknown;  ///< as measured
  double predicted_entropy =
      Evidence::kUnknown;  ///< of Gaussian scores of spread sigma, averaged over ‖q‖ where dim_qk is known
  double stein_ratio = Evidence::kUnknown;           ///< 1 for Gaussian rows of one spread; see gaussian_softmax.h
  double rounding = Evidence::kUnknown;              ///< u·|max|, for every dtype
  double unit_variance_factor = Evidence::kUnknown;  ///< divide c·q·k by this, and its variance within a row is 1
  double divisor = Evidence::kUnknown;               ///< what that makes of q·k: it is divided by this in all
  double divisor_over_sqrt_dk = Evidence::kUnknown;  ///< 1 where the familiar √d_k is right

  std::string words;  ///< what is the matter, with numbers
  std::string fix;    ///< one sentence
};

/// Ten to thirty milliseconds where dim_qk is known, for the average over ‖q‖; one or two otherwise; microseconds where
/// the evidence has predicted_entropy.
ROOTDK_API Judgement judge(const Evidence& evidence, const Thresholds& thresholds = {});

template <class Count>
Judgement judge(const HeadStatsOf<Count>& head, const Setting& setting = {}, const Thresholds& thresholds = {}) {
  return judge(evidence_of(head, setting), thresholds);
}

/// One per head, in the order of stats.per_head.
template <class Count>
std::vector<Judgement> judge(const StatsOf<Count>& stats, const Setting& setting = {},
                             const Thresholds& thresholds = {}) {
  std::vector<Judgement> out;
  out.reserve(stats.per_head.size());
  for (const HeadStatsOf<Count>& head : stats.per_head) out.push_back(judge(head, setting, thresholds));
  return out;
}

}  // namespace rootdk::theory
