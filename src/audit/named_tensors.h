// The tensors of a checkpoint by the names that a family gives them, checked against the sizes they are to have.
#pragma once

#include <cstdint>
#include <string>

#include "rootdk/audit/model.h"
#include "rootdk/checkpoint/checkpoint.h"

namespace rootdk::audit {

/// {layer} and {previous} become numbers.
std::string filled(std::string pattern, std::int64_t layer);

/// A tensor by its name without ending; old checkpoints call a norm's gain gamma. Null if there is none.
const checkpoint::TensorInfo* weight_in(const checkpoint::Checkpoint& file, const std::string& name);

class NamedTensors {
 public:
  /// Names begin with `prefix`; messages speak of a model of `family`.
  NamedTensors(const checkpoint::Checkpoint& file, std::string family, std::string prefix)
      : file_(file), prefix_(std::move(prefix)), family_name_(std::move(family)) {}

  const checkpoint::Checkpoint& file() const { return file_; }
  const std::string& family_name() const { return family_name_; }
  std::string name(const std::string& pattern, std::int64_t layer) const { return prefix_ + filled(pattern, layer); }

  // By the name without ending. They refuse what is missing, has another shape or cannot be read.
  const checkpoint::TensorInfo& matrix(const std::string& name) const;
  NormPlace norm_at(const std::string& name, theory::Norm::Kind kind, double offset, std::int64_t width) const;
  /// The name of its bias of so many numbers; empty: it has none.
  std::string bias_of(const std::string& name, std::int64_t rows) const;
  /// By the whole name.
  void check_vector(const std::string& tensor, std::int64_t wanted) const;

 protected:
  const checkpoint::Checkpoint& file_;
  std::string prefix_;

 private:
  std::string family_name_;
};

}  // namespace rootdk::audit
