// One head on activations that were recorded: moments of its q and k, and its largest score.
#pragma once

#include <cstdint>

#include "audit/inputs.h"
#include "audit/weights.h"
#include "rootdk/theory/head.h"

namespace rootdk::audit {

/// q or k of one head for every token, QK-norm and YaRN's magnitude included, not yet turned: [count, dim].
std::vector<float> rows_on(const LayerWeights& weights, Which which, std::int64_t head, const Tokens& tokens);

/// Mean and covariance of these rows, as a projection has them.
theory::Projected moments_of(const std::vector<float>& rows, std::int64_t dim);

struct LargestScores {
  double magnitude = 0, raw = 0;
};

/// Over the pairs of tokens that the layer lets meet, the tokens being one sequence, positions turned.
LargestScores largest_scores(const Attention& attention, std::vector<float> q, std::vector<float> k);

}  // namespace rootdk::audit
