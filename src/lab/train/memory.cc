// Weights, activations, gradients and the log of a run, in bytes.
#include "lab/train/memory.h"

#include <algorithm>

#include "engine/call_bytes.h"
#include "lab/need.h"
#include "lab/train/trainer.h"

namespace rootdk::lab {

namespace {

/// A model's sizes, and how many rows go through it at once.
struct Sizes {
  double vocabulary, width, layers, heads, rows_qk, rows_v, hidden, sequences, rows;

  Sizes(const RunOptions& o, const Task& task)
      : vocabulary(real(o.model.vocabulary)),
        width(real(o.model.width)),
        layers(real(o.model.layers)),
        heads(real(o.model.heads)),
        rows_qk(heads * real(o.model.dim_qk)),
        rows_v(heads * real(o.model.dim_v)),
        hidden(real(o.model.mlp_hidden)),
        sequences(real(o.sequences)),
        rows(sequences * real(task.length())) {}

  double parameters() const {
    return (2 * vocabulary + 1) * width + layers * width * (2 * rows_qk + 2 * rows_v + 3 * hidden + 2);
  }

  /// nn::BasicTransformerSaved, statistics aside: at every layer the stream, its two norms and what is between them; q,
  /// k, v, o and lse; four arrays of the MLP.
  double saved() const {
    return rows *
           (layers * (4 * width + 2 + 2 * rows_qk + 2 * rows_v + heads + 4 * hidden) + 2 * width + 1 + vocabulary);
  }

  /// Gradients on their way through a block: of the stream in four places, and of the attention's or of the MLP's
  /// arrays.
  double on_the_way_back() const { return rows * (4 * width + std::max(2 * rows_qk + 2 * rows_v, 2 * hidden)); }
};

}  // namespace

double bytes_of_log(const RunOptions& o) {
  double heads = 1;
  while (heads < real(o.model.layers) * real(o.model.heads)) heads *= 2;  // as a vector grows
  constexpr double kAllocation = 16;
  const double evaluations = real(o.steps) / real(o.evaluate_every) + 1;
  return real(o.steps) * (1.5 * sizeof(StepTrace) + heads * sizeof(HeadTrace) + kAllocation) +
         evaluations * sizeof(Evaluation);
}

double bytes_of_state(const RunOptions& o, const Task& task, bool has_store) {
  const Sizes sizes(o, task);
  const Shape shape = {o.sequences,   o.model.heads,  o.model.heads, task.length(),
                       task.length(), o.model.dim_qk, o.model.dim_v, DType::kF32};
  Problem problem;
  problem.mask.causal = true;
  problem.stats = StatsLevel::kFull;
  problem.stats_options.causes = false;
  const double call =
      std::max(engine::bytes_of_call(problem, shape), engine::bytes_of_call(problem, shape, Pass::kBackward));
  const double stats = sizes.layers * sizes.sequences * sizes.heads * engine::bytes_of_head_stats(StatsLevel::kFull);
  // Weights, gradients, two moments; a checkpoint has the weights and moments again, and one that is restored the
  // moments once more.
  const double copies = has_store ? 9 : 4;
  const double logits = sizes.rows * sizes.vocabulary, batch = 2 * sizes.rows;
  const double log = has_store ? 2 * bytes_of_log(o) : 0;
  return sizeof(float) * (copies * sizes.parameters() + sizes.saved() + logits + batch + sizes.on_the_way_back()) +
         call + stats + log;
}

MemoryNeed memory_of(const Task& task, const RunOptions& options, bool has_store) {
  const auto bytes = [&](const RunOptions& o) {
    const RunOptions all = checked(o, task);
    return bytes_of_state(all, task, has_store) + bytes_of_log(all);
  };
  return need_of(options, bytes, Size{"layers", [](auto& o) -> auto& { return o.model.layers;
}
}  // namespace rootdk::lab
, Size{"width", [](auto& o) -> auto& {return o.model.width;
}
}
, Size{"dim_qk", [](auto& o) -> auto& {return o.model.dim_qk;
}
},
                 Size{"sequences", &RunOptions::sequences}, Size{"steps", &RunOptions::steps});
}

}  // namespace rootdk::lab
