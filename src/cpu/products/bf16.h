// The products of attention on bf16 operands, for CPUs that multiply pairs of them: twice the multiply-adds an
// instruction, and K is read as it lies. Sums are f32. Scores are more exact than from f32 operands (products of bf16
// are exact and the scale comes after the sum); probabilities are rounded to bf16, as PyTorch and FlashAttention do
// (docs/decisions/0006).
//
// A pair is two bf16 in 32 bits, the earlier in the lower half. `width` is the number of lanes (query rows), a multiple
// of 16. Plain pointers and no templates: each implementation is a translation unit of its own, compiled for
// instructions that only it may use, and shares no inline function with others.
#pragma once

#include <cstddef>
#include <cstdint>

namespace rootdk::cpu {

/// Rows of bf16, `stride` elements apart.
struct Bf16Rows {
  const std::uint16_t* data;
  std::size_t stride;
};

/// What pack_values() wrote, of so many keys.
struct PackedValues {
  const std::uint16_t* data;
  std::size_t keys;
};

struct Bf16Products {
  const char* isa;       ///< as plans name it
  bool pays;             ///< faster than f32 on this CPU
  std::size_t dim_step;  ///< dim_qk must be a multiple
  /// `keys` of scores() and weighted_sum() is a multiple; the caller pads K with any rows, P with zeros
  std::size_t key_step;
  std::size_t (*packed_values)(std::size_t keys, std::size_t dim);  ///< elements that pack_values() writes

  /// s[key][width] = scale[lane]·Σ_d k[key][d]·q[lane][d]; q is [dim/2][width] pairs.
  void (*scores)(const std::uint32_t* q, std::size_t width, Bf16Rows k, std::size_t keys, std::size_t dim,
                 const float* scale, float* s);

  /// V in the order weighted_sum() wants it; values of keys beyond `keys`, up to a multiple of key_step, are 0.
  void (*pack_values)(Bf16Rows v, std::size_t keys, std::size_t dim, std::uint16_t* packed);

  /// p[key][width] → pairs of neighbouring keys, [keys/2][width], rounded to nearest even; keys that fill up to a
  /// multiple of key_step are 0. In place.
  void (*pack_weights)(float* p, std::size_t width, std::size_t keys);

  /// o[d][width] = o·rescale[lane] + Σ_key v[key][d]·p[key][lane] over the first `keys` keys; p is [keys/2][width]
  /// pairs.
  void (*weighted_sum)(const std::uint32_t* p, std::size_t width, PackedValues v, std::size_t keys, std::size_t dim,
                       const float* rescale, float* o);

  /// The same for few rows, row-major: s[row·s_stride + key], pairs p[row·p_stride + key/2], o[row][dim]. V is read as
  /// it lies. Any number of keys; dims are multiples of 16.
  void (*narrow_scores)(Bf16Rows q, std::size_t rows, Bf16Rows k, std::size_t keys, std::size_t dim, const float* scale,
                        float* s, std::size_t s_stride);
  void (*narrow_pack_weights)(float* p, std::size_t keys);  ///< one row, in place; an odd last key is paired with 0
  void (*narrow_sum)(const std::uint32_t* p, std::size_t p_stride, std::size_t rows, Bf16Rows v, std::size_t keys,
                     std::size_t dim, const float* rescale, float* o);
};

/// Null where this CPU (or this build) has no such instructions.
const Bf16Products* bf16_dot();  ///< AVX512-BF16
const Bf16Products* bf16_amx();  ///< AMX tiles; the operating system is asked for permission here

}  // namespace rootdk::cpu
