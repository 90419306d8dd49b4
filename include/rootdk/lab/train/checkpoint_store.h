// Where checkpoints go and come from: named f32 tensors with a map of strings. The one place where training meets a
// file format.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "rootdk/export.h"

namespace rootdk::lab {

struct CheckpointTensor {
  std::string name;
  std::vector<std::int64_t> shape;
  std::vector<float> values;  ///< row-major
};

struct Checkpoint {
  std::vector<CheckpointTensor> tensors;
  std::map<std::string, std::string> metadata;
};

class ROOTDK_API CheckpointStore {
 public:
  virtual ~CheckpointStore();

  /// All of it or nothing: what was there before stays readable until the new one is complete. Throws if it cannot.
  virtual void save(const std::string& path, const Checkpoint& checkpoint) = 0;

  /// Nothing if there is none at this path; throws if there is one that cannot be read.
  virtual std::optional<Checkpoint> load(const std::string& path) = 0;
};

}  // namespace rootdk::lab
