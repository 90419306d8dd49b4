// A checkpoint store without files, which remembers every save.
#pragma once

#include <map>
#include <mutex>
#include <optional>
#include <string>

#include "rootdk/lab/train/checkpoint_store.h"

namespace rootdk::lab::testing {

class MemoryStore final : public CheckpointStore {
 public:
  void save(const std::string& path, const Checkpoint& checkpoint) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    saved[path] = checkpoint;
    ++saves;
  }
  std::optional<Checkpoint> load(const std::string& path) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = saved.find(path);
    return found == saved.end() ? std::nullopt : std::optional(found->second);
  }

  std::map<std::string, Checkpoint> saved;
  int saves = 0;

 private:
  std::mutex mutex_;
};

inline bool same(const Checkpoint& a, const Checkpoint& b) {
  if (a.metadata != b.metadata || a.tensors.size() != b.tensors.size()) return false;
  for (std::size_t n = 0; n < a.tensors.size(); ++n)
    if (a.tensors[n].name != b.tensors[n].name || a.tensors[n].shape != b.tensors[n].shape ||
        a.tensors[n].values != b.tensors[n].values)
      return false;
  return true;
}

}  // namespace rootdk::lab::testing
