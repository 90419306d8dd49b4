// What every layer speaks of: arrays of its own type, and learned arrays by name.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

namespace rootdk::nn {

/// An array of a layer's own type: another argument says which, so that a vector will do for one.
template <class T>
using Values = std::span<std::type_identity_t<T>>;

/// One learned array. Not owned.
template <class T>
struct Parameter {
  std::string name;                 ///< "model.layers.0.self_attn.q_proj.weight"
  std::vector<std::int64_t> shape;  ///< row-major
  std::span<T> values;

  /// A matrix, so that weight decay pulls at it; gains and biases are left alone.
  bool decays() const { return shape.size() > 1; }
};

}  // namespace rootdk::nn
