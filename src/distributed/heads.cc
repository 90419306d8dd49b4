// All-to-all by heads: packing what others compute, placing what comes in the order of the sequence.
#include "distributed/heads.h"

#include <algorithm>

#include "distributed/rows.h"

namespace rootdk::distributed {

HeadShare HeadShare::of(const Shape& shape, int ranks, int rank) {
  HeadShare out{shape.heads_q * rank / ranks, shape.heads_q * (rank + 1) / ranks};
  if (out.q_first == out.q_last) return {};
  const std::int64_t group = shape.group();
  out.kv_first = out.q_first / group, out.kv_last = (out.q_last + group - 1) / group;
  return out;
}

std::vector<HeadRun> HeadShare::runs(std::int64_t group) const {
  if (q_first == q_last) return {};
  if (q_first % group == 0 && q_last % group == 0) return {{0, q_last - q_first, 0, kv_last - kv_first}};
  std::vector<HeadRun> out;
  for (std::int64_t kv = kv_first; kv < kv_last; ++kv) {
    const std::int64_t first = std::max(kv * group, q_first), last = std::min((kv + 1) * group, q_last);
    out.push_back({first - q_first, last - first, kv - kv_first, 1});
  }
  return out;
}

bool shares_key_heads(const Shape& shape, int ranks) {
  std::int64_t last = 0;
  for (int rank = 0; rank < ranks; ++rank) {
    const HeadShare share = HeadShare::of(shape, ranks, rank);
    if (share.kv_first == share.kv_last) continue;
    if (share.kv_first < last) return true;
    last = share.kv_last;
  }
  return false;
}

Problem problem_of_heads(Problem problem, const HeadShare& heads) {
  const auto first = static_cast<std::size_t>(heads.q_first), count = static_cast<std::size_t>(heads.q_last) - first;
  for (std::span<const float>* values : {&problem.scale.head_values, &problem.scale.head_gains,
                                         &problem.scale.head_offsets, &problem.mask.alibi_slopes, &problem.sink})
    if (!values->empty()) *values = values->subspan(first, count);
  for (ConstTensor* t : {&problem.mask.allowed, &problem.mask.bias})
    *t = cut_broadcast(*t, kHeads, heads.q_first, heads.q_last - heads.q_first);
  return problem;
}

HeadTravel::HeadTravel(const Ranks& ranks, const Shape& shape, SharedMeter meter)
    : ranks_(ranks), shape_(shape), meter_(std::move(meter)) {
  const int size = ranks.group.size();
  for (int rank = 0; rank < size; ++rank) shares_.push_back(HeadShare::of(shape, size, rank));
  all_queries_ = ranks.queries.over(size).pieces[0];
  all_keys_ = ranks.keys.over(size).pieces[0];
}

std::pair<std::int64_t, std::int64_t> HeadTravel::heads(const Leg& leg, int rank) const {
  const HeadShare& share = shares_[static_cast<std::size_t>(rank)];
  return leg.of_keys ? std::pair{share.kv_first, share.kv_last - share.kv_first}
                     : std::pair{share.q_first, share.q_last - share.q_first};
}

Extents HeadTravel::extents(const Leg& leg, int computes, int whose) const {
  return {shape_.batch, heads(leg, computes).second, length_of(of(leg, whose)), leg.from.shape[kDim]};
}

Message HeadTravel::message_of(const std::vector<Leg>& legs, int computes, int whose) const {
  std::int64_t bytes = 0;
  for (const Leg& leg : legs) bytes += bytes_of(leg.from.dtype, extents(leg, computes, whose));
  return make_message(meter_, bytes);
}

/// The tensors of a message: those of wide elements first, so that each lies where its elements may.
Tensor HeadTravel::in_message(const Message& message, const std::vector<Leg>& legs, std::size_t i, int computes,
                              int whose) const {
  std::int64_t before = 0;
  const std::int64_t size = size_of(legs[i].from.dtype);
  for (std::size_t j = 0; j < legs.size(); ++j)
    if (const std::int64_t other = size_of(legs[j].from.dtype); other > size || (other == size && j < i))
      before += bytes_of(legs[j].from.dtype, extents(legs[j], computes, whose));
  const Extents shape = extents(legs[i], computes, whose);
  return {message->data() + before, legs[i].from.dtype, Device::kCpu, shape, row_major(shape)};
}

std::vector<Block> HeadTravel::there(const std::vector<Leg>& legs) const {
  const int me = ranks_.group.me, size = ranks_.group.size();
  std::vector<Message> to, from;
  for (int rank = 0; rank < size; ++rank) {
    to.push_back(message_of(legs, rank, me));
    from.push_back(rank == me ? to.back() : message_of(legs, me, rank));
    for (std::size_t i = 0; i < legs.size(); ++i) {
      const auto [first, count] = heads(legs[i], rank);
      copy(cut(legs[i].from, kHeads, first, count), in_message(to.back(), legs, i, rank, me));
    }
  }
  ranks_.group.exchange(Channel::kData, to, from)->wait();
  to.clear();
  std::vector<Block> out;
  for (const Leg& leg : legs)
    out.emplace_back(meter_, leg.from.dtype,
                     Extents{shape_.batch, heads(leg, me).second, length_of(all(leg)), leg.from.shape[kDim]});
  for (int rank = 0; rank < size; ++rank) {
    for (std::size_t i = 0; i < legs.size(); ++i) {
      const Tensor rows = in_message(from[static_cast<std::size_t>(rank)], legs, i, me, rank);
      each_run(of(legs[i], rank), all(legs[i]), [&](std::int64_t place, std::int64_t whole, std::int64_t count) {
        copy(cut(rows, kLength, place, count), cut(out[i].tensor(), kLength, whole, count));
      });
    }
    from[static_cast<std::size_t>(rank)].reset();
  }
  return out;
}

void HeadTravel::back(const std::vector<Leg>& legs) const {
  const int me = ranks_.group.me, size = ranks_.group.size();
  std::vector<Message> to, from;
  for (int rank = 0; rank < size; ++rank) {
    to.push_back(message_of(legs, me, rank));
    from.push_back(rank == me ? to.back() : message_of(legs, rank, me));
    for (std::size_t i = 0; i < legs.size(); ++i) {
      const Tensor rows = in_message(to.back(), legs, i, me, rank);
      each_run(of(legs[i], rank), all(legs[i]), [&](std::int64_t place, std::int64_t whole, std::int64_t count) {
        copy(cut(legs[i].from, kLength, whole, count), cut(rows, kLength, place, count));
      });
    }
  }
  ranks_.group.exchange(Channel::kData, to, from)->wait();
  for (int rank = 0; rank < size; ++rank) {
    for (std::size_t i = 0; i < legs.size(); ++i) {
      const Tensor rows = in_message(from[static_cast<std::size_t>(rank)], legs, i, rank, me);
      const auto [first, count] = heads(legs[i], rank);
      const Tensor home = cut(legs[i].to, kHeads, first, count);
      if (legs[i].of_keys) add(rows, home);
      else copy(rows, home);
    }
  }
}

}  // namespace rootdk::distributed
