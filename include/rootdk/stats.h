// What the scores did: learned in the same pass that computes the output.
//
// Two places to look: raw is c·q·k, before soft-cap, your transform and biases (its maximum is what explodes in an
// unstable run); score is what softmax sees. Only visible keys count.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "rootdk/tensor.h"

namespace rootdk {

enum class StatsLevel : std::uint8_t {
  kNone,   ///< the output only
  kBasic,  ///< maxima, p_max, lse: by-products of softmax, so they are the default
};

/// One head of one batch item. Averages leave out rows with fewer than two visible keys (they look saturated whatever
/// the scores do) and rows that are not finite.
struct HeadStats {
  std::int64_t rows = 0;             ///< queries
  std::int64_t rows_masked = 0;      ///< of these, with no visible key
  std::int64_t rows_short = 0;       ///< of these, with fewer than two visible keys (the masked ones included)
  std::int64_t rows_not_finite = 0;  ///< of these, with NaN or Inf in the output or lse
  float raw_max = 0;                 ///< largest c·q·k over visible pairs of finite rows; −inf if there is none
  float score_max = 0;               ///< the same just before softmax
  double mean_p_max = 0;             ///< mean over rows of the largest probability; NaN if no row counts
  double mean_lse = 0;               ///< mean over the same rows of ln Σ e^s
};

/// Heads in the order [batch][query head].
struct Stats {
  StatsLevel level = StatsLevel::kNone;
  std::int64_t batch = 0;
  std::int64_t heads = 0;
  std::vector<HeadStats> per_head;

  const HeadStats& at(std::int64_t batch_index, std::int64_t head) const {
    return per_head[static_cast<std::size_t>(batch_index * heads + head)];
  }
};

/// Per-row statistics, each an f32 (f64 for f64 problems) tensor [batch, heads_q, len_q, 1]; absent ones are not written.
struct RowTensors {
  Tensor raw_max = {};
  Tensor score_max = {};
  Tensor p_max = {};
};

}  // namespace rootdk
