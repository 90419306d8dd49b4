// Who has gone no further, and whom each was waiting for: so that of many ranks that wait for each other the one is
// named that none of them heard from.
//
// A wait that takes longer than the timeout says so to all (a suspicion), then listens for the grace: a rank that it
// waited for and that has a suspicion itself is alive, and so on along the chain. A rank that raised is named at once.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <string>

#include "rootdk/distributed/transport.h"

namespace rootdk::distributed {

struct Fault {
  int waiting_for = -1;  ///< a rank; −1: none, this rank raised
  std::string why;       ///< what it raised
};

/// How long to listen after a timeout.
inline std::chrono::milliseconds grace(std::chrono::milliseconds timeout) {
  return std::max<std::chrono::milliseconds>(timeout / 4, std::chrono::milliseconds(200));
}

class FaultBoard {
 public:
  void add(int rank, Fault fault) { faults_.emplace(rank, std::move(fault)); }
  bool any() const { return !faults_.empty(); }

  void throw_if_raised() const {
    for (const auto& [rank, fault] : faults_)
      if (fault.waiting_for < 0)
        throw RankError(ErrorCode::kRankFailed, rank, fmt::format("rank {}: {}", rank, fault.why));
  }

  /// After the grace, by who waited for `rank`.
  [[noreturn]] void throw_of(int rank, std::chrono::milliseconds timeout) const {
    throw_if_raised();
    for (std::size_t hops = 0; hops < faults_.size(); ++hops) {
      const auto fault = faults_.find(rank);
      if (fault == faults_.end()) break;
      rank = fault->second.waiting_for;
    }
    throw RankError(ErrorCode::kRankFailed, rank,
                    fmt::format("rank {}: nothing came from it for {} ms", rank, timeout.count()));
  }

 private:
  std::map<int, Fault> faults_;  ///< by who says so; the first word counts
};

}  // namespace rootdk::distributed
