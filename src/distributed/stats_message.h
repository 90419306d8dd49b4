// Statistics as bytes, to be sent and merged: every value returns bit for bit.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "rootdk/stats.h"

namespace rootdk::distributed {

std::vector<std::byte> to_bytes(const Stats& stats);
Stats stats_from_bytes(std::span<const std::byte> bytes);

}  // namespace rootdk::distributed
