// Every rank gets all of K and V that it needs at once; backward sends each rank's part of dK and dV home, where they
// are added in the order of the ranks.
#include "distributed/needs.h"
#include "distributed/rows.h"
#include "distributed/ways.h"

namespace rootdk::distributed {

namespace {

/// K and V of all ranks that this one needs, in the order of the sequence.
struct Gathered {
  Gathered(const Ranks& ranks, const Whole& whole, const ConstTensor& k, const ConstTensor& v) {
    const Shape& s = whole.shape;
    const Needs needs{whole.problem.mask, s, ranks.queries, ranks.keys};
    const int me = ranks.group.me;
    Pieces all;
    for (int r = 0; r < ranks.group.size(); ++r) {
      needed.push_back(needs(me, r)), needing.push_back(needs(r, me));
      const Pieces& theirs = ranks.keys.pieces[static_cast<std::size_t>(r)];
      if (needed.back()) all.insert(all.end(), theirs.begin(), theirs.end());
    }
    pieces = joined(std::move(all));

    std::vector<KvMessage> parts(needed.size());
    std::vector<Message> from(parts.size()), to(parts.size());
    for (std::size_t r = 0; r < parts.size(); ++r)
      if (needed[r])
        parts[r] = KvMessage(whole, s.dtype, ranks.keys.length(static_cast<int>(r))), from[r] = parts[r].message;
    const KvMessage& mine = parts[static_cast<std::size_t>(me)];
    copy(k, mine.k), copy(v, mine.v);
    for (std::size_t r = 0; r < to.size(); ++r)
      if (needing[r]) to[r] = mine.message;
    ranks.group.exchange(Channel::kData, to, from)->wait();

    const std::int64_t length = length_of(pieces);
    all_k = Block(whole.meter, s.dtype, {s.batch, s.heads_kv, length, s.dim_qk});
    all_v = Block(whole.meter, s.dtype, {s.batch, s.heads_kv, length, s.dim_v});
    for (std::size_t r = 0; r < parts.size(); ++r) {
      if (!needed[r]) continue;
      each_run(ranks.keys.pieces[r], pieces, [&](std::int64_t place, std::int64_t whole_place, std::int64_t count) {
        copy(cut(parts[r].k, kLength, place, count), cut(all_k.tensor(), kLength, whole_place, count));
        copy(cut(parts[r].v, kLength, place, count), cut(all_v.tensor(), kLength, whole_place, count));
      });
    }
  }

  std::vector<bool> needed, needing;  ///< by me, me
  Pieces pieces;
  Block all_k, all_v;
};

}  // namespace

void all_gather_forward(const Ranks& ranks, const Whole& whole, const ConstTensor& k, const ConstTensor& v,
                        ForwardParts& parts) {
  const Gathered all(ranks, whole, k, v);
  parts.add(all.pieces, all.all_k.tensor(), all.all_v.tensor());
}

KvMessage all_gather_backward(const Ranks& ranks, const Whole& whole, const ConstTensor& k, const ConstTensor& v,
                              BackwardParts& parts) {
  const Gathered all(ranks, whole, k, v);
  const Block all_d_k(whole.meter, whole.work(), all.all_k.tensor().shape),
      all_d_v(whole.meter, whole.work(), all.all_v.tensor().shape);
  parts.add(all.pieces, all.all_k.tensor(), all.all_v.tensor(), all_d_k.tensor(), all_d_v.tensor());

  const auto me = static_cast<std::size_t>(ranks.group.me);
  std::vector<KvMessage> to(all.needed.size()), from(to.size());
  std::vector<Message> sends(to.size()), receives(to.size());
  for (std::size_t r = 0; r < to.size(); ++r) {
    if (all.needed[r]) {
      to[r] = KvMessage(whole, whole.work(), ranks.keys.length(static_cast<int>(r)));
      each_run(ranks.keys.pieces[r], all.pieces, [&](std::int64_t place, std::int64_t whole_place, std::int64_t count) {
        copy(cut(all_d_k.tensor(), kLength, whole_place, count), cut(to[r].k, kLength, place, count));
        copy(cut(all_d_v.tensor(), kLength, whole_place, count), cut(to[r].v, kLength, place, count));
      });
      sends[r] = to[r].message;
    }
    if (!all.needing[r]) continue;
    from[r] = r == me ? to[r] : KvMessage(whole, whole.work(), ranks.keys.length(ranks.group.me));
    receives[r] = from[r].message;
  }
  ranks.group.exchange(Channel::kGradients, sends, receives)->wait();
  const KvMessage sum(whole, whole.work(), ranks.keys.length(ranks.group.me));
  for (std::size_t r = 0; r < from.size(); ++r)
    if (all.needing[r]) add(from[r].k, sum.k), add(from[r].v, sum.v);
  return sum;
}

}  // namespace rootdk::distributed
