// What to compute. Plain data: it says nothing about how, or on which hardware.
//
// For every query i and visible key j:
//   s = c·q_i·k_j  →  soft-cap  →  your transform  →  + bias, ALiBi  →  mask  →  sink  →  softmax  →  dropout  →  ·v_j
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "rootdk/mask.h"
#include "rootdk/scale.h"
#include "rootdk/stats.h"
#include "rootdk/tensor.h"
#include "rootdk/transform.h"

namespace rootdk {

/// Sizes and storage type. heads_q is a multiple of heads_kv; query head h reads key/value head h / group().
struct Shape {
  std::int64_t batch = 1;
  std::int64_t heads_q = 1;
  std::int64_t heads_kv = 1;
  std::int64_t len_q = 0;
  std::int64_t len_kv = 0;
  std::int64_t dim_qk = 0;
  std::int64_t dim_v = 0;
  DType dtype = DType::kF32;

  std::int64_t group() const { return heads_kv > 0 ? heads_q / heads_kv : 0; }
};

/// Probabilities are zeroed with probability `p` and the others divided by 1 − p. Which ones is a pure function of
/// (seed, batch, head, query, key), the same on every machine (Philox4x32-10).
struct Dropout {
  float p = 0;
  std::uint64_t seed = 0;
  /// On a GPU only: device memory that holds the seed when the kernels run, in place of `seed`. A captured graph reads
  /// it at every replay.
  const std::uint64_t* device_seed = nullptr;
};

/// K and V in pages: k is then [pages, heads_kv, page_size, dim_qk] and v likewise; key j of batch item b lies in page
/// table[b·pages_per_item + j / page_size] at row j % page_size. Not owned.
struct PagedKv {
  std::span<const std::int32_t> table = {};  ///< [batch, pages_per_item]
  std::int64_t pages_per_item = 0;
  std::int64_t len_kv = 0;  ///< keys per batch item (Mask::key_lengths shortens single ones)
};

struct Problem {
  Scale scale = Scale::inv_sqrt_dk();     ///< multiplies q·k before anything else
  std::optional<float> soft_cap = {};     ///< cap·tanh(s/cap), cap > 0; absent means off
  ScoreTransform transform = {};          ///< your own f(s), after the cap
  Mask mask = {};                         ///< which keys a query may see, and biases
  std::span<const float> sink = {};       ///< per query head: one more key of this score and value 0
  Dropout dropout = {};                   ///< on the probabilities
  std::optional<PagedKv> paged = {};      ///< K and V through a page table
  StatsLevel stats = StatsLevel::kBasic;  ///< what to learn on the way; basic is nearly free but for tiny problems
  StatsOptions stats_options = {};        ///< and how
};

}  // namespace rootdk
