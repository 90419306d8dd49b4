// What attention over ranks costs in each way: flops, bytes, messages, time, memory. Bytes and messages are exact,
// and memory nearly so, which tests hold them to; time is a model of links that have a latency and a bandwidth.
// docs/distributed.md has the formulas.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "rootdk/distributed/attention.h"
#include "rootdk/distributed/layout.h"
#include "rootdk/export.h"
#include "rootdk/problem.h"

namespace rootdk::distributed {

/// What ranks and their links can do. The defaults are of nodes of eight H200 with 400 Gb/s to each between nodes.
struct Cluster {
  double flops = 500e12;  ///< a second, of one rank
  int ranks_per_node = 8;
  double link = 450e9;         ///< bytes a second, one way, inside a node
  double latency = 5e-6;       ///< seconds a message
  double link_between = 50e9;  ///< between nodes, for each rank
  double latency_between = 10e-6;
  std::optional<double> memory = {};  ///< bytes that a rank has for what comes on top; absent: enough
};

/// What heads bring along beside rows of Q, K, V and O.
struct Luggage {
  bool lse = false;    ///< forward's lse is wanted
  bool stats = false;  ///< statistics are (then lse comes, too)
  bool d_lse = false;  ///< lse has a gradient
  bool kept = true;    ///< backward has forward's notes
};

struct PassCost {
  std::vector<std::int64_t> sent = {};  ///< bytes, by each rank
  std::int64_t messages = 0;            ///< of all ranks
  std::vector<double> flops = {};       ///< of each rank
  double seconds = 0;
  /// The most at a time on any rank, in bytes, beyond inputs and outputs: messages, copies, partial results and, in
  /// backward, what forward kept. Without the engine's workspace, headers, and statistics under way.
  std::int64_t memory = 0;
};

struct Cost {
  Way way = Way::kRing;
  std::string refused = {};  ///< why it cannot be; then the rest is empty
  PassCost forward = {}, backward = {};
  double efficiency = 0;  ///< ideal time over this one's, forward and backward; ideal: all flops on all ranks at once

  double seconds() const { return forward.seconds + backward.seconds; }
  /// What must fit: forward and backward run one after the other.
  std::int64_t memory() const { return std::max(forward.memory, backward.memory); }
};

struct Choice {
  std::vector<Cost> costs;  ///< of ring, all_gather, heads, two_levels
  Way way = Way::kRing;     ///< the fastest of those whose memory there is
  std::string why = {};
};

/// `shape` has the lengths of the whole sequence. Of the mask, causality, window and documents count.
ROOTDK_API Choice plan(const Mask& mask, const Shape& shape, const Layout& queries, const Layout& keys,
                       const Cluster& cluster = {}, const Luggage& luggage = {});

}  // namespace rootdk::distributed
