// Activations that were recorded as they entered the projections of each layer.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "audit/gram.h"
#include "rootdk/audit/model.h"
#include "rootdk/checkpoint/checkpoint.h"

namespace rootdk::audit {

/// What enters the projections of a layer.
struct Tokens {
  std::int64_t count = 0, width = 0, stride = 0;
  std::vector<float> values;  ///< [count, stride]; beyond the width: 0

  Tokens(std::int64_t tokens, std::int64_t numbers)
      : count(tokens), width(numbers), stride(row_stride(numbers)), values(static_cast<std::size_t>(tokens * stride)) {}
  std::span<float> row(std::int64_t token) {
    return std::span(values).subspan(static_cast<std::size_t>(token * stride), static_cast<std::size_t>(width));
  }
  std::span<const float> row(std::int64_t token) const {
    return std::span(values).subspan(static_cast<std::size_t>(token * stride), static_cast<std::size_t>(width));
  }
};

class Inputs {
 public:
  /// As Options::inputs says. Refuses what cannot belong to the model.
  Inputs(const std::filesystem::path& path, const Model& model);

  /// Of this layer; none where nothing was recorded, or where keys come from elsewhere (cross-attention, latents).
  std::optional<Tokens> of(const Attention& attention) const;

  /// How many those will be; 0: none.
  std::int64_t tokens_of(const Attention& attention) const;

 private:
  /// Rows of an array that belong to a layer.
  struct Place {
    checkpoint::Checkpoint file;
    std::int64_t first = 0, count = 0;
  };
  std::optional<Place> find(const Attention& attention) const;

  std::filesystem::path path_;
  bool is_directory_ = false;
  std::string kind_;  // that a single file, or files without a kind in their name, belong to
  std::optional<checkpoint::Checkpoint> file_;
};

}  // namespace rootdk::audit
