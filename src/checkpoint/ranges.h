// Where tensors lie: none may reach into another, and safetensors must leave nothing out.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "checkpoint/source.h"

namespace rootdk::checkpoint {

/// A tensor's bytes [begin, end) in the file.
struct Range {
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
  std::uint64_t described_at = 0;  ///< where the file says so
  std::string name;
};

enum class Gaps : bool { kRefuse, kAllow };

/// All ranges lie within [begin, end). Sorts them.
void check_ranges(const Source& source, std::vector<Range>& ranges, std::uint64_t begin, std::uint64_t end, Gaps gaps);

}  // namespace rootdk::checkpoint
