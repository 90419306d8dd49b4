// Heads travel: every rank of a group gets all rows of some heads, and rows go home afterwards.
#pragma once

#include <vector>

#include "distributed/ways.h"

namespace rootdk::distributed {

/// Query heads that one of `ranks` computes, and the heads of keys that they read.
struct HeadShare {
  std::int64_t q_first = 0, q_last = 0, kv_first = 0, kv_last = 0;

  static HeadShare of(const Shape& shape, int ranks, int rank);

  /// As calls of the engine; heads are counted from the first here.
  std::vector<HeadRun> runs(std::int64_t group) const;
};

/// Whether two ranks read the same head of keys, so that its gradient is a sum.
bool shares_key_heads(const Shape& shape, int ranks);

/// The problem of those heads alone.
Problem problem_of_heads(Problem problem, const HeadShare& heads);

/// A tensor that travels: of queries or of keys, in its own dtype.
struct Leg {
  bool of_keys = false;
  ConstTensor from;  ///< `there`: [batch, all heads, tokens here, dim]; `back`: [batch, heads here, tokens of all, dim]
  Tensor to = {};    ///< `back` only: [batch, all heads, tokens here, dim]
};

class HeadTravel {
 public:
  /// `ranks` are those of one node; `shape` has all heads.
  HeadTravel(const Ranks& ranks, const Shape& shape, SharedMeter meter);

  const HeadShare& mine() const { return shares_[static_cast<std::size_t>(ranks_.group.me)]; }

  /// All tensors in one message to each: [batch, heads here, tokens of all in order, dim].
  std::vector<Block> there(const std::vector<Leg>& legs) const;
  /// Home again. What several ranks computed of a head of keys is added, so `to` holds zeros before.
  void back(const std::vector<Leg>& legs) const;

 private:
  /// A leg's rows between two ranks: [batch, heads of who computes, tokens of whose they are, dim].
  Extents extents(const Leg& leg, int computes, int whose) const;
  Message message_of(const std::vector<Leg>& legs, int computes, int whose) const;
  Tensor in_message(const Message& message, const std::vector<Leg>& legs, std::size_t i, int computes, int whose) const;
  const Pieces& all(const Leg& leg) const { return leg.of_keys ? all_keys_ : all_queries_; }
  const Pieces& of(const Leg& leg, int rank) const {
    return (leg.of_keys ? ranks_.keys : ranks_.queries).pieces[static_cast<std::size_t>(rank)];
  }
  std::pair<std::int64_t, std::int64_t> heads(const Leg& leg, int rank) const;

  const Ranks& ranks_;
  Shape shape_;
  SharedMeter meter_;
  std::vector<HeadShare> shares_;
  Pieces all_queries_, all_keys_;
};

}  // namespace rootdk::distributed
