// What the weights let one expect of every head.
//
// Inputs are taken as isotropic: after a norm each component has variance 1 and they do not correlate; without a norm x
// ~ N(0, I). Queries and keys come from independent inputs. Real tokens are neither. Where the checkpoint has
// embeddings, they stand in for the inputs of every layer; `inputs` and `run` replace the assumption by a measurement.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "rootdk/audit/model.h"
#include "rootdk/audit/run.h"
#include "rootdk/checkpoint/checkpoint.h"
#include "rootdk/export.h"
#include "rootdk/memory.h"
#include "rootdk/theory/judge.h"

namespace rootdk::audit {

/// What softmax makes of the scores of a row with so many keys, if they are Gaussian.
struct AtContext {
  std::int64_t context = 0;        ///< as asked for
  double keys = 0;                 ///< the context, or the layer's window where that is shorter
  double sigma_over_critical = 0;  ///< σ/σ_c
  double entropy = 0;              ///< in nats
  double participation = 0;        ///< 1/E Σp²
  double p_max = 0;
  theory::Verdict verdict = theory::Verdict::kUnknown;
};

/// The same head on inputs that are not isotropic.
struct OnInputs {
  double variance = 0, sigma = 0, unit_divisor = 0;
  double ratio = 0;  ///< of the unit divisor to √d_k
  double sigma_over_isotropic = 0;
};

/// On inputs that were recorded, or in a run of the model.
struct Measured : OnInputs {
  static constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();

  double largest_score = 0;  ///< the largest |scale·q·k| over the pairs of tokens that were given
  double largest_raw = 0;    ///< the largest scale·q·k, with its sign: what QK-clip looks at
  double clip_factor = 1;    ///< QK-clip's γ for Options::clip_threshold

  // What softmax made of it: of a run only, means over the rows that see at least two keys.
  double score_sigma = kUnknown;    ///< of what softmax sees: after the soft-cap
  double keys = kUnknown;           ///< e to the mean of ln n
  double entropy = kUnknown;        ///< in nats
  double participation = kUnknown;  ///< 1/mean Σp², as AtContext has it
  double p_max = kUnknown;
  double trace_j = kUnknown;  ///< 1 − Σp²: tr of softmax's Jacobian
};

struct Head {
  static constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();

  std::int64_t head = 0, kv_head = 0, d_k = 0;
  std::int64_t not_finite = 0;  ///< NaN or Inf among its weights; then nothing else is known
  bool overflows = false;       ///< its weights are finite, but products of them leave f32; then little else is known

  // Of q·k, before the scale.
  double mean = kUnknown;
  double variance = kUnknown;             ///< within a row; averaged over all phases where there is rotary
  double variance_in_context = kUnknown;  ///< the same over distances 0 … context − 1
  double unit_divisor = kUnknown;         ///< √variance
  double ratio = kUnknown;                ///< of that to √d_k
  // Of scores, after it.
  double scale = kUnknown;
  double sigma = kUnknown;
  double bound = kUnknown;          ///< |s| cannot exceed it; unknown without a norm
  double f16_headroom = kUnknown;   ///< 65504 over the bound: at 1 or below, f16 can overflow
  double bf16_rounding = kUnknown;  ///< the most that bf16 can move a score of that size
  // Why.
  double sigma_q = kUnknown, sigma_k = kUnknown, key_mean_norm = kUnknown, alignment = kUnknown;
  double largest_singular_value = kUnknown;  ///< of W_qᵀW_k with norms folded in
  double effective_rank = kUnknown;
  std::vector<double> spectrum;  ///< singular values of W_qᵀW_k, descending

  std::vector<theory::AtDistance> curve;  ///< over distance, where there is rotary
  std::vector<AtContext> contexts;
  theory::Judgement judgement;  ///< at Options::judge_at; of a run: of the keys that its rows saw
  /// Were every layer's inputs like the model's own normalised embeddings; absent where these are not known.
  std::optional<OnInputs> on_embeddings;
  std::optional<Measured> measured;

  bool finite() const { return not_finite == 0 && !overflows; }

  /// The surest of what is known: measured, on embeddings, from the weights alone. Verdicts and `contexts` stand on it.
  theory::Ground ground() const {
    return measured        ? theory::Ground::kMeasured
           : on_embeddings ? theory::Ground::kEmbeddings
                           : theory::Ground::kWeights;
  }
  double surest_sigma() const { return measured ? measured->sigma : on_embeddings ? on_embeddings->sigma : sigma; }
  double surest_divisor() const {
    return measured ? measured->unit_divisor : on_embeddings ? on_embeddings->unit_divisor : unit_divisor;
  }
  double surest_ratio() const { return measured ? measured->ratio : on_embeddings ? on_embeddings->ratio : ratio; }
};

struct Layer {
  Attention attention;
  std::vector<Head> heads;
};

struct Audit {
  Model model;  ///< its layers are those below
  std::vector<std::int64_t> contexts;
  std::int64_t judged_at = 0;  ///< the context that verdicts are for
  std::vector<Layer> layers;
  std::optional<Run> ran;  ///< with Options::run
  bool complete = true;    ///< false: stopped before the last layer
};

struct Options {
  std::vector<std::int64_t> contexts =
      {};  ///< empty: those of 512, 4096, 32768 and 131072 below the model's own, and that
  std::optional<std::int64_t> judge_at = {};  ///< one more of them, if it is not there; absent: the longest
  std::vector<double> distances = {};         ///< of the rotary curve; empty: 0, 1, 2, 4, … up to the model's context
  bool spectra = true;                        ///< whether to compute Head::spectrum
  /// Activations as they enter the projections (after the norm): an .npy [tokens, width] for all layers or [layers,
  /// tokens, width], or a directory with 0.npy, 1.npy, … by layer. Empty: isotropic inputs only.
  std::filesystem::path inputs = {};
  /// Runs the model on this and measures every head; not together with `inputs`. Verdicts are then those of the run.
  std::optional<RunInput> run = {};
  double clip_threshold = 100;  ///< τ of QK-clip, for Measured::clip_factor
  theory::Thresholds thresholds = {};
  /// As a part begins: the share that is done, from 0 to 1, and what comes now ("layer 3 of 12"); at the end 1, and
  /// nothing.
  std::function<void(double done, std::string_view what)> progress = {};
  std::function<bool()> stop = {};
};

/// At the peak of an audit, beside its options. Refuses a run and inputs that do not fit the model.
ROOTDK_API MemoryNeed memory_of(const checkpoint::Checkpoint& checkpoint, const Model& model,
                                const Options& options = {});

/// Never has more of the projections in memory than one head's for each thread or, where they are stored transposed,
/// one layer's. Heads run on the threads that OpenMP offers; the numbers do not depend on how many those are.
ROOTDK_API Audit audit(const checkpoint::Checkpoint& checkpoint, const Model& model, const Options& options = {});

}  // namespace rootdk::audit
