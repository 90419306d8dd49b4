// Runs a model on tokens, through the engine, and keeps what every head's scores did. f32 throughout, so the last
// hidden state is what other frameworks get in f32, to rounding. The numbers do not depend on how many threads there
// are.
//
// In memory are the weights of one half of a layer (attention or MLP), a few [tokens, width], and q, k and v of all
// tokens.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string_view>
#include <vector>

#include "rootdk/audit/model.h"
#include "rootdk/checkpoint/checkpoint.h"
#include "rootdk/export.h"
#include "rootdk/stats.h"

namespace rootdk::audit {

/// What a model is run on: ids of tokens, or what enters its first block. Sequences of one length, without padding;
/// they do not see each other.
struct RunInput {
  std::int64_t sequences = 0, length = 0;
  std::vector<std::int64_t> ids = {};  ///< [sequences, length], or …
  std::vector<float> embeddings =
      {};                  ///< … [sequences, length, width]: positions added, the embedding's norm behind them
  std::int64_t width = 0;  ///< of embeddings
};

/// An .npy of whole numbers, [tokens] or [sequences, tokens].
ROOTDK_API RunInput read_tokens(const std::filesystem::path& path);

/// Random ids, all of the vocabulary equally likely, the same for the same numbers. They are no text, but go the way
/// that tokens go: spreads of trained models come out far nearer than without running them (docs/audit.md). Length 0:
/// 256, or the model's context where that is shorter.
ROOTDK_API RunInput random_tokens(const Model& model, std::int64_t sequences = 4, std::int64_t length = 0);

/// An .npy [tokens, width] or [sequences, tokens, width].
ROOTDK_API RunInput read_embeddings(const std::filesystem::path& path);

struct RunOptions {
  std::function<void(double done, std::string_view what)> progress = {};  ///< as audit::Options has it
  std::function<bool()> stop = {};
};

struct Run {
  std::int64_t sequences = 0, length = 0, width = 0;
  std::vector<std::vector<HeadStats>> layers;  ///< of Model::layers, one for each query head, over all sequences; full
  std::vector<float> last_hidden_state;        ///< [sequences, length, width], after the final norm; empty if stopped
  bool complete = true;                        ///< false: stopped before the last layer
};

/// The most memory that a run will take, in bytes, beside what `input` holds: of weights, activations, calls of the
/// engine and statistics, which is nearly all of it. The model has a network.
ROOTDK_API std::int64_t bytes_to_run(const Model& model, const RunInput& input);

/// Refuses a model without a network, with Model::why_not_run; ids that are not in the vocabulary; sequences that are
/// longer than the model's context or its table of positions.
ROOTDK_API Run run(const checkpoint::Checkpoint& checkpoint, const Model& model, const RunInput& input,
                   const RunOptions& options = {});

}  // namespace rootdk::audit
