// A model's own embeddings as what its layers see. The stream that each layer reads begins as the embedding of a token,
// and training gives embeddings a mean, outlier channels and directions that W_q and W_k know of: things that isotropic
// inputs have not.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "audit/inputs.h"
#include "audit/weights.h"
#include "rootdk/audit/model.h"
#include "rootdk/checkpoint/checkpoint.h"

namespace rootdk::audit {

/// Inputs of queries and of keys. They are two samples, so that what a small sample says too much about itself does not
/// look as if queries and keys were aligned; one and the same where it is the whole vocabulary.
struct EmbeddedInputs {
  Tokens queries, keys;
};

class Embeddings {
 public:
  /// Reads a fixed sample of the vocabulary, each token at a position of its own where positions are learned.
  Embeddings(const checkpoint::Checkpoint& checkpoint, const Model& model);

  /// Of how many tokens that sample is, for queries and for keys each.
  static std::int64_t sampled(const Model& model);

  /// As they would enter the layer's projections, its norm applied. None where the model has no embeddings, or where
  /// queries or keys come from elsewhere (cross-attention, latents, images).
  std::optional<EmbeddedInputs> of(const LayerWeights& weights, const Attention& attention) const;

 private:
  Tokens normalised(const Tokens& tokens, const NormPlace& norm, const LayerWeights& weights) const;

  NormPlace own_norm_;                            // of the embedding itself
  std::optional<EmbeddedInputs> plain_, normed_;  // before and after it
};

}  // namespace rootdk::audit
