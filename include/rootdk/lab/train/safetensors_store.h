// Training checkpoints as safetensors files, which the audit and everyone else can read.
#pragma once

#include <optional>
#include <string>

#include "rootdk/export.h"
#include "rootdk/lab/train/checkpoint_store.h"

namespace rootdk::lab {

class ROOTDK_API SafetensorsStore final : public CheckpointStore {
 public:
  void save(const std::string& path, const Checkpoint& checkpoint) override;
  std::optional<Checkpoint> load(const std::string& path) override;
};

}  // namespace rootdk::lab
