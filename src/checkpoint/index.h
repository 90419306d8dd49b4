// model.safetensors.index.json: which shard has which tensor.
//   {"metadata": {…}, "weight_map": {"tensor": "model-00001-of-00002.safetensors", …}}
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "checkpoint/source.h"

namespace rootdk::checkpoint {

struct IndexEntry {
  std::string tensor;
  std::string file;      ///< a name without directories
  std::uint64_t at = 0;  ///< where the index says so
};

/// In the index's order. Refuses names of files that are not in the index's own directory; links are not looked at
/// here.
std::vector<IndexEntry> read_index(const Source& source);

}  // namespace rootdk::checkpoint
