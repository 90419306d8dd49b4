// A saved q and k under every rule, side by side: what each would do to this head.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "rootdk/export.h"
#include "rootdk/lab/watch.h"
#include "rootdk/memory.h"
#include "rootdk/scale.h"
#include "rootdk/stats.h"
#include "rootdk/tensor.h"

namespace rootdk::lab {

/// Something to try: a scale, and what may go with it.
struct Treatment {
  enum class On : std::uint8_t {
    kScores,        ///< the scale alone
    kUnitVariance,  ///< scale measured per head: within-row variance of q·k becomes 1
    kQkNorm,        ///< q and k normalised (RMS, gain 1) before the scale
    kCosine,        ///< q and k of length 1
    kTemperature,   ///< the scale, then adaptive temperature by each row's entropy
  };

  std::string name;
  Scale scale = Scale::inv_sqrt_dk();
  On on = On::kScores;
  std::optional<float> soft_cap = {};
};

/// 1/√d_k first, the other rules of the registry with usual parameters, and those that are not scales.
ROOTDK_API std::vector<Treatment> usual_treatments();

/// "measured", "qk_norm", "cosine(c)", "soft_cap(c)", "temperature", or anything Scale::parse takes.
ROOTDK_API Treatment treatment(std::string_view text);

struct WhatifOptions {
  ConstTensor q, k;    ///< [batch, heads, length, dim], f32 or f64, as they meet (after rotary)
  ConstTensor v = {};  ///< absent: outputs are not compared
  bool causal = false;
  std::vector<Treatment> treatments = usual_treatments();
};

/// Over all batch items and heads, or one head of them.
struct WhatifNumbers {
  std::int64_t rows = 0;                ///< that count: finite, with two keys or more in sight
  double sigma = 0;                     ///< root of the within-row variance of the scores
  double largest = 0;                   ///< score
  double entropy = 0;                   ///< mean
  double relative_entropy = 0;          ///< mean entropy over mean ln n: 1 is uniform
  double effective_keys = 0;            ///< mean e^H
  double p_max = 0;                     ///< mean
  double trace_j = 0;                   ///< mean
  double share_trace_j_under_1pct = 0;  ///< share of rows with tr J < 0.01
};

struct WhatifRow {
  std::string name, description;
  std::optional<double> factor;  ///< c, where it is one number
  WhatifNumbers all;
  std::vector<WhatifNumbers> heads;  ///< one per query head, over the batch
  std::optional<double> output_change;  ///< ‖o − o′‖/‖o′‖, o′ being that of the first treatment; with v only
};

struct Whatif {
  std::int64_t batch = 0, heads_q = 0, heads_kv = 0, len_q = 0, len_kv = 0, dim_qk = 0;
  bool causal = false;
  std::vector<double> head_divisors;  ///< what would give each query head unit variance
  std::vector<WhatifRow> rows;
  bool complete = true;
};

/// At its peak, beside q, k and v, of which only the shapes are looked at. Refuses what does not fit together.
ROOTDK_API MemoryNeed memory_of(const WhatifOptions& options);

ROOTDK_API Whatif try_rules(const WhatifOptions& options, const Watch& watch = {});

/// The numbers above, from the statistics of a pass at StatsLevel::kFull.
ROOTDK_API WhatifNumbers numbers_of(const HeadStats& stats);

}  // namespace rootdk::lab
