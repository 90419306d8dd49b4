// Rotary positions (Su et al., "RoFormer", 2021): pairs of components of q and k turn by an angle proportional to the
// position, so that q·k depends on the two positions only through their difference.
//
// Pair i of a vector at position p turns by p·base^(−2i/dims):
//   (a, b) → (a cos − b sin, a sin + b cos)
// A rotation preserves lengths, and the gradient goes back through the inverse rotation.
#pragma once

#include <cstdint>
#include <span>

#include "rootdk/export.h"
#include "rootdk/tensor.h"

namespace rootdk::nn {

struct Rotary {
  /// Which components make a pair.
  enum class Pairing : std::uint8_t {
    kHalfSplit,    ///< i and i + dims/2: GPT-NeoX, Hugging Face LLaMA
    kInterleaved,  ///< 2i and 2i + 1: the paper, GPT-J, GGUF LLaMA
  };

  Pairing pairing = Pairing::kHalfSplit;
  double base = 10000;    ///< the slowest pair turns about 1/base per position; longer contexts take a larger one
  std::int64_t dims = 0;  ///< leading components that turn, an even number; 0: all of them
  std::int64_t first_position = 0;  ///< position of key 0; scores depend on differences only, so this rarely matters

  /// dims with the default filled in.
  std::int64_t turning_dims(std::int64_t dim_qk) const { return dims == 0 ? dim_qk : dims; }

  /// Radians per position of pair i out of turning_dims/2.
  ROOTDK_API double frequency(std::int64_t pair, std::int64_t dim_qk) const;
};

enum class Turn : std::uint8_t {
  kForward,
  kBack,  ///< the inverse, and so the backward pass
};

/// Turns x [batch, heads, length, dim_qk] (f32 or f64, any strides) in place. `positions` has one entry per row:
/// [length], shared by the batch, or [batch, length]; rotary.first_position is added to each. Angles are computed in
/// double.
ROOTDK_API void rotate(const Rotary& rotary, const Tensor& x, std::span<const std::int64_t> positions,
                       Turn turn = Turn::kForward);

}  // namespace rootdk::nn
