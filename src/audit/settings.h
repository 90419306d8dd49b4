// What a model's configuration says, wherever it is: config.json, GGUF's metadata, the metadata of a safetensors file.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "audit/json.h"
#include "rootdk/checkpoint/checkpoint.h"

namespace rootdk::audit {

class Settings {
 public:
  explicit Settings(const checkpoint::Checkpoint& checkpoint);

  /// "model_type" of a config.json, "general.architecture" of a GGUF; empty if neither says.
  const std::string& model_type() const { return model_type_; }
  bool is_gguf() const { return is_gguf_; }
  bool empty() const { return tree_.empty(); }

  /// A value by its path: "rope_scaling.factor". Models of text and something else keep theirs in "text_config", which
  /// is looked into, too. Null where there is none, or where it is null.
  const Json* find(std::string_view path) const;

  // The first of `paths` that is there. Refuses what has another type, or what is not finite.
  std::optional<double> number(const std::vector<std::string>& paths) const;
  std::optional<std::string> text(const std::vector<std::string>& paths) const;
  std::optional<bool> boolean(const std::vector<std::string>& paths) const;
  /// At least `least`. An array holds one for each layer.
  std::optional<std::int64_t> whole(const std::vector<std::string>& paths, std::int64_t least,
                                    std::int64_t layer = 0) const;

  /// For messages: "config.json", "the metadata".
  const std::string& name() const { return name_; }

 private:
  Json tree_ = Json::object();
  bool is_gguf_ = false, is_flat_ = false;  // flat: keys contain the points themselves
  std::string model_type_, name_ = "config.json";
};

}  // namespace rootdk::audit
