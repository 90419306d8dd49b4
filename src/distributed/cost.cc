// The cost model. Let rank r hold Nq_r queries and Nk_r keys, P ranks; e bytes an element, w of a partial result.
//   flops  forward 2·(Dk + Dv) a visible pair and head: q·k, p·v; backward 2·(3·Dk + 2·Dv): q·k, dp, dv, dq, dk
//   kv_c = B·Hk·Nk_c·(Dk + Dv)·e, dkv_c the same times w/e
//   ring        K and V of c go hops(c) times; backward again, and dK and dV with them, then home
//   all_gather  K and V of c go to all that need them; backward again, and dK and dV come back
//   heads       q, k, v of a rank's heads there, o back; backward do there, dq, dk, dv back
//   two_levels  heads inside a node, then the ring over nodes of what each rank has
//   time   a message takes latency + bytes/bandwidth. Ring: steps, each the longest of any rank's kernel and message;
//          others: the busiest rank's messages one after another, in both directions at a time, then the slowest kernel
//   memory  cost_memory.h
#include "rootdk/distributed/cost.h"

#include <algorithm>
#include <array>
#include <map>
#include <numeric>

#include <fmt/format.h>

#include "base/constants.h"
#include "base/refuse.h"
#include "distributed/cost_memory.h"
#include "distributed/heads.h"
#include "distributed/needs.h"
#include "distributed/parts.h"
#include "distributed/tiles.h"

namespace rootdk::distributed {

namespace {

using Pairs = Table<double>;

/// Σ over i < n of start + i, each clamped to 0 … most.
double clamped_sum(std::int64_t n, std::int64_t start, std::int64_t most) {
  const auto below = [most](std::int64_t x) {  // Σ of the clamped whole numbers below x
    x = std::max<std::int64_t>(x, 0);
    const std::int64_t ramp = std::min(x, most + 1);
    return static_cast<double>(ramp) * static_cast<double>(ramp - 1) / 2 +
           static_cast<double>(x - ramp) * static_cast<double>(most);
  };
  return below(start + n) - below(start);
}

/// Visible pairs of queries and keys of one document; the first query stands at `offset` from the first key.
double pairs_of(const Mask& mask, std::int64_t queries, std::int64_t keys, std::int64_t offset) {
  const Window window = mask.window.value_or(Window{});
  const std::int64_t right = mask.causal ? 0 : std::min(window.right, base::kFar),
                     left = std::min(window.left, base::kFar);
  return clamped_sum(queries, offset + right + 1, keys) - clamped_sum(queries, offset - left, keys);
}

double pairs_of(const Mask& mask, const Tile& tile) {
  if (tile.q_starts.empty()) return pairs_of(mask, tile.queries.length(), tile.keys.length(), tile.offset);
  double sum = 0;
  for (std::size_t d = 1; d < tile.q_starts.size(); ++d)
    sum +=
        pairs_of(mask, tile.q_starts[d] - tile.q_starts[d - 1], tile.kv_starts[d] - tile.kv_starts[d - 1], tile.offset);
  return sum;
}

/// Calls visit(rank of the queries, rank of the keys, tile) for every one.
template <class Visit>
void each_tile(const Mask& mask, const Shape& shape, const Layout& queries, const Layout& keys, const Visit& visit) {
  for (int r = 0; r < queries.ranks(); ++r)
    for (int c = 0; c < keys.ranks(); ++c)
      for (const Tile& tile :
           tiles_of(mask, shape, queries.pieces[static_cast<std::size_t>(r)], keys.pieces[static_cast<std::size_t>(c)]))
        visit(r, c, tile);
}

bool needs(const Pairs& pairs, int r, int c) { return r == c || pairs.at(r, c) > 0; }

std::vector<int> hops_of(const Pairs& pairs) {
  const int ranks = static_cast<int>(pairs.ranks);
  std::vector<int> out;
  for (int c = 0; c < ranks; ++c) {
    int far = ranks - 1;
    while (far > 0 && !needs(pairs, (c + far) % ranks, c)) --far;
    out.push_back(far);
  }
  return out;
}

double seconds_of(const Cluster& m, int from, int to, double bytes, double messages = 1) {
  const bool inside = from / m.ranks_per_node == to / m.ranks_per_node;
  return bytes == 0 ? 0
                    : messages * (inside ? m.latency : m.latency_between) + bytes / (inside ? m.link : m.link_between);
}

struct Sent {
  explicit Sent(int ranks) : bytes(ranks), messages(ranks) {}
  void send(int from, int to, std::int64_t size) {
    if (from == to || size == 0) return;
    bytes.at(from, to) += size, messages.at(from, to) += 1;
  }
  /// As part of a larger one: rank i of it is number first + i·step.
  void add(const Sent& part, int first, int step) {
    for (int r = 0; r < static_cast<int>(part.bytes.ranks); ++r)
      for (int t = 0; t < static_cast<int>(part.bytes.ranks); ++t) {
        bytes.at(first + r * step, first + t * step) += part.bytes.at(r, t);
        messages.at(first + r * step, first + t * step) += part.messages.at(r, t);
      }
  }
  double seconds(const Cluster& cluster) const {
    const int ranks = static_cast<int>(bytes.ranks);
    std::vector<double> out(bytes.ranks), in(bytes.ranks);
    for (int r = 0; r < ranks; ++r)
      for (int t = 0; t < ranks; ++t) {
        const double took =
            seconds_of(cluster, r, t, static_cast<double>(bytes.at(r, t)), static_cast<double>(messages.at(r, t)));
        out[static_cast<std::size_t>(r)] += took, in[static_cast<std::size_t>(t)] += took;
      }
    return std::max(*std::max_element(out.begin(), out.end()), *std::max_element(in.begin(), in.end()));
  }

  Table<std::int64_t> bytes, messages;
};

struct BothSent {
  explicit BothSent(int ranks) : forward(ranks), backward(ranks) {}
  Sent forward, backward;
};

BothSent ring_sent(const Sizes& sizes, const Layout& keys, const std::vector<int>& hops) {
  const int ranks = keys.ranks();
  BothSent out(ranks);
  for (int c = 0; c < ranks; ++c) {
    const std::int64_t kv = sizes.kv(keys.length(c), sizes.element()), d_kv = sizes.kv(keys.length(c), sizes.wide());
    const int far = hops[static_cast<std::size_t>(c)];
    for (int step = 0; step < far; ++step) {
      const int here = (c + step) % ranks, there = (c + step + 1) % ranks;
      out.forward.send(here, there, kv);
      out.backward.send(here, there, kv), out.backward.send(here, there, d_kv);
    }
    out.backward.send((c + far) % ranks, c, d_kv);
  }
  return out;
}

BothSent gather_sent(const Sizes& sizes, const Layout& keys, const Pairs& pairs) {
  BothSent out(keys.ranks());
  for (int c = 0; c < keys.ranks(); ++c) {
    const std::int64_t kv = sizes.kv(keys.length(c), sizes.element()), d_kv = sizes.kv(keys.length(c), sizes.wide());
    for (int r = 0; r < keys.ranks(); ++r) {
      if (!needs(pairs, r, c)) continue;
      out.forward.send(c, r, kv);
      out.backward.send(c, r, kv), out.backward.send(r, c, d_kv);
    }
  }
  return out;
}

/// Among ranks that hold so many queries and keys each.
BothSent heads_sent(const Sizes& sizes, const std::vector<std::int64_t>& queries, const std::vector<std::int64_t>& keys,
                    const Luggage& luggage) {
  const int ranks = static_cast<int>(queries.size());
  const Shape& s = sizes.shape;
  const std::int64_t e = sizes.element(), w = sizes.wide();
  const std::int64_t row_numbers = luggage.stats ? 1 + static_cast<std::int64_t>(row_tensors().size()) : luggage.lse;
  const std::int64_t d_keys = shares_key_heads(s, ranks) ? w : e;
  BothSent out(ranks);
  for (int j = 0; j < ranks; ++j) {  // who computes
    const Shape mine = sizes.of_heads(ranks, j).shape;
    for (int r = 0; r < ranks; ++r) {  // whose rows
      const std::int64_t rows = s.batch * queries[static_cast<std::size_t>(r)] * mine.heads_q,
                         columns = s.batch * keys[static_cast<std::size_t>(r)] * mine.heads_kv * (s.dim_qk + s.dim_v);
      const std::int64_t q_kv = e * (rows * s.dim_qk + columns), d_o = rows * (e * s.dim_v + (luggage.d_lse ? w : 0)),
                         again = luggage.kept ? 0 : q_kv + rows * (e * s.dim_v + w);
      out.forward.send(r, j, q_kv);
      out.forward.send(j, r, rows * (e * s.dim_v + w * row_numbers));
      out.backward.send(r, j, d_o + again);
      out.backward.send(j, r, e * rows * s.dim_qk + d_keys * columns);
    }
  }
  return out;
}

double ring_seconds(const Sizes& sizes, const Layout& keys, const std::vector<int>& hops, const Pairs& pairs,
                    double seconds_a_pair, const Cluster& cluster, bool backward) {
  const int ranks = keys.ranks();
  const auto far = [&](int c) { return hops[static_cast<std::size_t>(c)]; };
  double total = 0;
  for (int step = 0; step <= *std::max_element(hops.begin(), hops.end()); ++step) {
    double slowest = 0;
    for (int r = 0; r < ranks; ++r) {
      const int c = ((r - step) % ranks + ranks) % ranks;
      if (far(c) < step) continue;
      const std::int64_t n = keys.length(c);
      const std::int64_t bytes = sizes.kv(n, sizes.element()) + (backward ? sizes.kv(n, sizes.wide()) : 0);
      if (far(c) > step)
        slowest = std::max(slowest, seconds_of(cluster, r, (r + 1) % ranks, static_cast<double>(bytes)));
      slowest = std::max(slowest, pairs.at(r, c) * seconds_a_pair);
    }
    total += slowest;
  }
  double home = 0;
  for (int c = 0; c < ranks && backward; ++c)
    if (far(c) > 0)
      home = std::max(home, seconds_of(cluster, (c + far(c)) % ranks, c,
                                       static_cast<double>(sizes.kv(keys.length(c), sizes.wide()))));
  return total + home;
}

std::vector<std::int64_t> lengths_of(const Layout& layout, int first, int count) {
  std::vector<std::int64_t> out;
  for (int r = first; r < first + count; ++r) out.push_back(layout.length(r));
  return out;
}

class Model {
 public:
  Model(const Mask& mask, const Shape& shape, const Layout& queries, const Layout& keys, const Cluster& cluster,
        const Luggage& luggage)
      : mask_(mask),
        sizes_(Sizes{shape}.of_heads(1, 0)),
        queries_(queries),
        keys_(keys),
        pairs_(queries.ranks()),
        cluster_(cluster),
        luggage_(luggage),
        ranks_(queries.ranks()) {
    const auto heads = static_cast<double>(shape.batch * shape.heads_q);
    const auto dk = static_cast<double>(shape.dim_qk), dv = static_cast<double>(shape.dim_v);
    flops_[0] = 2 * (dk + dv) * heads, flops_[1] = 2 * (3 * dk + 2 * dv) * heads;
    Table<Bytes> parts(ranks_);  // two more numbers a pair of ranks: no longer there when messages are counted
    each_tile(mask, shape, queries, keys, [&](int r, int c, const Tile& tile) {
      pairs_.at(r, c) += pairs_of(mask, tile) * static_cast<double>(tile.items.length()) /
                         static_cast<double>(std::max<std::int64_t>(1, shape.batch));
      parts.at(r, c) = larger(parts.at(r, c), part_bytes(sizes_, tile, luggage));
    });
    for (const Bytes& memory : ring_memory(sizes_, queries, keys, hops_of(pairs_), parts, luggage))
      ring_memory_ = larger(ring_memory_, memory);
    for (int r = 0; r < ranks_; ++r) work_.push_back(pairs_.row_sum(r));
    all_pairs_ = std::accumulate(work_.begin(), work_.end(), 0.0);
  }

  Cost ring() const {
    const std::vector<int> hops = hops_of(pairs_);
    double seconds[2];
    for (int pass = 0; pass < 2; ++pass)
      seconds[pass] = ring_seconds(sizes_, keys_, hops, pairs_, flops_[pass] / cluster_.flops, cluster_, pass == 1);
    return cost(Way::kRing, ring_sent(sizes_, keys_, hops), seconds, work_, ring_memory_);
  }

  Cost all_gather() const {
    const Pieces everything = keys_.over(ranks_).pieces[0];
    Bytes most = {};
    for (int r = 0; r < ranks_; ++r) {
      Pieces wanted;
      std::int64_t keys = 0, needing = 0;
      for (int c = 0; c < ranks_; ++c) {
        needing += needs(pairs_, c, r);
        if (!needs(pairs_, r, c)) continue;
        const Pieces& theirs = keys_.pieces[static_cast<std::size_t>(c)];
        wanted.insert(wanted.end(), theirs.begin(), theirs.end()), keys += keys_.length(c);
      }
      wanted = keys == keys_.length() ? everything : joined(std::move(wanted));
      Bytes part = {};
      for (const Tile& tile : tiles_of(mask_, sizes_.shape, queries_.pieces[static_cast<std::size_t>(r)], wanted))
        part = larger(part, part_bytes(sizes_, tile, luggage_));
      most =
          larger(most, gather_memory(sizes_, {queries_.length(r), keys_.length(r)}, {keys, needing}, part, luggage_));
    }
    return after_messages(Way::kAllGather, gather_sent(sizes_, keys_, pairs_), work_, most);
  }

  Cost heads() const {
    std::vector<double> work;
    for (int j = 0; j < ranks_; ++j) work.push_back(share_of(ranks_, j) * all_pairs_);
    return after_messages(Way::kHeads,
                          heads_sent(sizes_, lengths_of(queries_, 0, ranks_), lengths_of(keys_, 0, ranks_), luggage_),
                          work, travel_memory(ranks_, queries_.over(ranks_), keys_.over(ranks_), {0}));
  }

  Cost two_levels() const {
    const int size = cluster_.ranks_per_node;
    if (size < 2 || ranks_ % size != 0 || ranks_ == size)
      return {Way::kTwoLevels, fmt::format("{} ranks are not several nodes of {}, more than 1 each", ranks_, size)};
    const int nodes = ranks_ / size;
    const Layout queries = queries_.over(size), keys = keys_.over(size);
    Pairs pairs(nodes);
    for (int r = 0; r < ranks_; ++r)
      for (int c = 0; c < ranks_; ++c) pairs.at(r / size, c / size) += pairs_.at(r, c);
    const std::vector<int> hops = hops_of(pairs);
    const Bytes memory = travel_memory(size, queries, keys, hops);
    BothSent sent(ranks_);
    double inside[2] = {}, between[2] = {};
    for (int node = 0; node < nodes; ++node) {
      const BothSent part =
          heads_sent(sizes_, lengths_of(queries_, node * size, size), lengths_of(keys_, node * size, size), luggage_);
      sent.forward.add(part.forward, node * size, 1), sent.backward.add(part.backward, node * size, 1);
      inside[0] = std::max(inside[0], part.forward.seconds(cluster_));
      inside[1] = std::max(inside[1], part.backward.seconds(cluster_));
    }
    Cluster outside = cluster_;
    outside.ranks_per_node = 1;
    std::vector<double> work(static_cast<std::size_t>(ranks_));
    for (int j = 0; j < size; ++j) {
      const Sizes part = sizes_.of_heads(size, j);
      const BothSent ring = ring_sent(part, keys, hops);
      sent.forward.add(ring.forward, j, size), sent.backward.add(ring.backward, j, size);
      for (int pass = 0; pass < 2; ++pass)
        between[pass] = std::max(
            between[pass], ring_seconds(part, keys, hops, pairs, share_of(size, j) * flops_[pass] / cluster_.flops,
                                        outside, pass == 1));
      for (int node = 0; node < nodes; ++node)
        work[static_cast<std::size_t>(node * size + j)] = pairs.row_sum(node) * share_of(size, j);
    }
    const double seconds[2] = {inside[0] + between[0], inside[1] + between[1]};
    return cost(Way::kTwoLevels, sent, seconds, work, memory);
  }

 private:
  double share_of(int ranks, int rank) const {
    return static_cast<double>(sizes_.of_heads(ranks, rank).shape.heads_q) /
           static_cast<double>(std::max<std::int64_t>(1, sizes_.shape.heads_q));
  }

  /// Heads inside nodes of so many ranks, and the ring between them; `queries` and `keys` are those of each node.
  Bytes travel_memory(int size, const Layout& queries, const Layout& keys, const std::vector<int>& hops) const {
    const TravelMemory travel(sizes_, size, luggage_);
    std::map<std::array<std::int64_t, 4>, std::vector<Bytes>> rings;  // of each node, for ranks with so many heads
    Bytes most = {};
    for (int j = 0; j < size; ++j) {
      const Sizes part = sizes_.of_heads(size, j);
      std::vector<Bytes>& ring = rings[{part.shape.heads_q, part.shape.heads_kv, part.run_q, part.run_kv}];
      if (ring.empty()) {
        Table<Bytes> parts(queries.ranks());
        each_tile(mask_, sizes_.shape, queries, keys, [&](int r, int c, const Tile& tile) {
          parts.at(r, c) = larger(parts.at(r, c), part_bytes(part, tile, luggage_));
        });
        ring = ring_memory(part, queries, keys, hops, parts, luggage_);
      }
      for (int node = 0; node < queries.ranks(); ++node) {
        const int rank = node * size + j;
        most = larger(most, travel.of(j, {queries_.length(rank), keys_.length(rank)},
                                      {queries.length(node), keys.length(node)}, ring[static_cast<std::size_t>(node)]));
      }
    }
    return most;
  }

  Cost after_messages(Way way, const BothSent& sent, const std::vector<double>& work, const Bytes& memory) const {
    const double slowest = *std::max_element(work.begin(), work.end());
    const double seconds[2] = {sent.forward.seconds(cluster_) + slowest * flops_[0] / cluster_.flops,
                               sent.backward.seconds(cluster_) + slowest * flops_[1] / cluster_.flops};
    return cost(way, sent, seconds, work, memory);
  }

  Cost cost(Way way, const BothSent& sent, const double (&seconds)[2], const std::vector<double>& work,
            const Bytes& memory) const {
    Cost out{way};
    const Sent* both[] = {&sent.forward, &sent.backward};
    PassCost* passes[] = {&out.forward, &out.backward};
    for (int pass = 0; pass < 2; ++pass) {
      passes[pass]->seconds = seconds[pass], passes[pass]->memory = memory[static_cast<std::size_t>(pass)];
      for (int r = 0; r < ranks_; ++r) {
        passes[pass]->sent.push_back(both[pass]->bytes.row_sum(r));
        passes[pass]->messages += both[pass]->messages.row_sum(r);
        passes[pass]->flops.push_back(work[static_cast<std::size_t>(r)] * flops_[pass]);
      }
    }
    const double ideal = all_pairs_ * (flops_[0] + flops_[1]) / (ranks_ * cluster_.flops);
    out.efficiency = out.seconds() > 0 ? ideal / out.seconds() : 1;
    return out;
  }

  const Mask& mask_;
  Sizes sizes_;
  const Layout &queries_, &keys_;
  Pairs pairs_;
  Cluster cluster_;
  Luggage luggage_;
  int ranks_;
  double flops_[2];
  std::vector<double> work_;
  double all_pairs_ = 0;
  Bytes ring_memory_ = {};
};

void check_cluster(const Cluster& m) {
  for (const auto& [name, value] : {std::pair{"flops", m.flops}, {"link", m.link}, {"link_between", m.link_between}})
    if (!(value > 0 && value < 1e30)) base::refuse("{}: {}, but a positive number is wanted", name, value);
  for (const auto& [name, value] : {std::pair{"latency", m.latency}, {"latency_between", m.latency_between}})
    if (!(value >= 0 && value < 1e6)) base::refuse("{}: {} s, but at least 0 is wanted", name, value);
  if (m.ranks_per_node < 1) base::refuse("ranks_per_node: {}, but at least 1 is wanted", m.ranks_per_node);
}

}  // namespace

Choice plan(const Mask& mask, const Shape& shape, const Layout& queries, const Layout& keys, const Cluster& cluster,
            const Luggage& luggage) {
  check_cluster(cluster);
  for (const auto& [layout, length, name] :
       {std::tuple{&queries, shape.len_q, "len_q"}, std::tuple{&keys, shape.len_kv, "len_kv"}}) {
    layout->check();
    if (layout->length() != length) base::refuse("layout: of {} tokens, but {} is {}", layout->length(), name, length);
  }
  if (queries.ranks() != keys.ranks())
    base::refuse("layout: {} ranks hold queries, but {} hold keys", queries.ranks(), keys.ranks());
  const Model model(mask, shape, queries, keys, cluster, luggage);
  Choice out;
  out.costs = {model.ring(), model.all_gather(), model.heads(), model.two_levels()};
  const Cost *best = nullptr, *least = nullptr;
  bool tight = false;
  for (const Cost& cost : out.costs) {
    if (!cost.refused.empty()) continue;
    if (!least || cost.memory() < least->memory()) least = &cost;
    if (cluster.memory && static_cast<double>(cost.memory()) > *cluster.memory) tight = true;
    else if (!best || cost.seconds() < best->seconds()) best = &cost;
  }
  out.way = (best ? best : least)->way;
  out.why = !best   ? "none fits into the memory there is, and this takes least"
            : tight ? "fastest that fits"
                    : "fastest";
  return out;
}

}  // namespace rootdk::distributed
