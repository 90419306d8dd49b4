// QK-clip on a checkpoint: heads whose largest observed score passed τ are shrunk, in a copy.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "rootdk/audit/findings.h"
#include "rootdk/audit/model.h"
#include "rootdk/checkpoint/checkpoint.h"
#include "rootdk/export.h"

namespace rootdk::audit {

/// The largest raw score scale·q·k that a head was seen to make. A bound will not do: hardly any input comes near it.
struct Observed {
  std::string kind = "self";
  std::int64_t layer = 0, head = 0;
  double largest_raw = 0;
};

struct ClippedHead {
  Observed observed;
  double gamma = 1;                    ///< τ over the observed maximum
  double on_queries = 1, on_keys = 1;  ///< what W_q, b_q and W_k, b_k (or the gains of QK-norm) were multiplied by
};

struct Clip {
  double threshold = 100;  ///< τ
  bool dry_run = false;    ///< say what would change; write nothing
};

struct Clipped {
  std::vector<ClippedHead> heads;    ///< those with γ < 1
  std::vector<std::string> tensors;  ///< those that differ from the original
};

/// Writes the corrected copy to `out`, which appears whole or not at all. Where query heads share their keys all of γ
/// goes to the queries. A checkpoint of one safetensors file only; nothing is ever changed in place.
ROOTDK_API Clipped clip_checkpoint(const checkpoint::Checkpoint& checkpoint, const Model& model,
                                   std::span<const Observed> observed, const Clip& clip,
                                   const std::filesystem::path& out);

/// Maxima that were observed elsewhere, as JSON: [[head 0, head 1, …] of layer 0, …], or {"layers": [{"layer": 0,
/// "max_raw": […]}, …]} with an optional "kind" for models that have several. null is a head that nothing is known of.
/// Refuses what does not fit the model.
ROOTDK_API std::vector<Observed> observed_from_json(std::string_view text, const Model& model);

/// From Audit::layers[…].heads[…].measured. Refuses an audit without inputs.
ROOTDK_API std::vector<Observed> observed_in(const Audit& audit);

}  // namespace rootdk::audit
