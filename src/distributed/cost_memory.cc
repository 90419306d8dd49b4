// The sums follow parts.cc, ring.cc, all_gather.cc, heads.cc and attention.cc, in the order in which those allocate.
#include "distributed/cost_memory.h"

#include "distributed/heads.h"

namespace rootdk::distributed {

namespace {

std::int64_t row_numbers(const Luggage& luggage) {
  return luggage.stats ? static_cast<std::int64_t>(row_tensors().size()) : 0;
}

/// What ForwardParts and BackwardParts keep of their queries: forward q widened, o, lse and row tensors; backward q, o
/// and do widened, and dq.
Bytes kept_by_parts(const Sizes& sizes, std::int64_t queries, const Luggage& luggage) {
  const Shape& s = sizes.shape;
  const std::int64_t rows = sizes.rows(queries), w = sizes.wide();
  return {rows * (s.dim_qk * sizes.copy() + (s.dim_v + 1 + row_numbers(luggage)) * w),
          rows * ((s.dim_qk + 2 * s.dim_v) * sizes.copy() + s.dim_qk * w)};
}

}  // namespace

Sizes Sizes::of_heads(int ranks, int rank) const {
  const HeadShare share = HeadShare::of(shape, ranks, rank);
  Sizes out{shape};
  out.shape.heads_q = share.q_last - share.q_first, out.shape.heads_kv = share.kv_last - share.kv_first;
  for (const HeadRun& run : share.runs(std::max<std::int64_t>(1, shape.group())))
    out.run_q = std::max(out.run_q, run.q_count), out.run_kv = std::max(out.run_kv, run.kv_count);
  return out;
}

Bytes part_bytes(const Sizes& sizes, const Tile& tile, const Luggage& luggage) {
  const Shape& s = sizes.shape;
  const std::int64_t rows = tile.items.length() * sizes.run_q * tile.queries.length(),
                     kv = tile.items.length() * sizes.run_kv * tile.keys.length() * (s.dim_qk + s.dim_v),
                     w = sizes.wide();
  return {kv * sizes.copy() + rows * (s.dim_v + 1 + row_numbers(luggage)) * w,
          kv * sizes.copy() + (rows * s.dim_qk + kv) * w};
}

std::vector<Bytes> ring_memory(const Sizes& sizes, const Layout& queries, const Layout& keys,
                               const std::vector<int>& hops, const Table<Bytes>& parts, const Luggage& luggage) {
  const int ranks = keys.ranks(), steps = *std::max_element(hops.begin(), hops.end()) + 1;
  std::vector<std::int64_t> kv, d_kv;
  for (int c = 0; c < ranks; ++c)
    kv.push_back(sizes.kv(keys.length(c), sizes.element())), d_kv.push_back(sizes.kv(keys.length(c), sizes.wide()));
  std::vector<Bytes> out;
  for (int r = 0; r < ranks; ++r) {
    Bytes most = {};
    std::int64_t going = 0;  // the sum of the step before: the next rank takes it once its own part is computed
    for (int step = 0; step < steps; ++step) {
      const int c = ((r - step) % ranks + ranks) % ranks, after = ((c - 1) % ranks + ranks) % ranks;
      const auto at = static_cast<std::size_t>(c), then = static_cast<std::size_t>(after);
      const bool here = hops[at] >= step, next = step + 1 < steps && hops[then] > step;
      const std::int64_t travelling = (here ? kv[at] : 0) + (next ? kv[then] : 0);
      const Bytes part = here ? parts.at(r, c) : Bytes{};
      const std::int64_t sums = here ? (step > 0 ? 2 : 1) * d_kv[at] : 0;
      most = larger(most, {(ranks > 1 ? travelling : 0) + part[0], travelling + sums + going + part[1]});
      going = here && (step > 0 || hops[at] > 0) ? d_kv[at] : 0;
    }
    const Bytes kept = kept_by_parts(sizes, queries.length(r), luggage);
    const std::int64_t home = d_kv[static_cast<std::size_t>(r)];
    out.push_back({kept[0] + most[0], kept[1] + home + most[1]});
  }
  return out;
}

Bytes gather_memory(const Sizes& sizes, const Held& own, const Gathering& gathering, const Bytes& part,
                    const Luggage& luggage) {
  const Bytes kept = kept_by_parts(sizes, own.queries, luggage);
  const std::int64_t got = sizes.kv(gathering.keys, sizes.element()), d_got = sizes.kv(gathering.keys, sizes.wide()),
                     d_own = sizes.kv(own.keys, sizes.wide());
  const std::int64_t arriving = 2 * got;                                    // as messages, and in order
  const std::int64_t homing = got + 2 * d_got + gathering.needing * d_own;  // in order, as messages; from others; sum
  return {kept[0] + std::max(arriving, got + part[0]), kept[1] + std::max({arriving, got + d_got + part[1], homing})};
}

TravelMemory::TravelMemory(const Sizes& all, int size, const Luggage& luggage)
    : all_(all), size_(size), luggage_(luggage), sums_keys_(shares_key_heads(all.shape, size)) {
  for (int j = 0; j < size; ++j) key_heads_ += all.of_heads(size, j).shape.heads_kv;
}

Bytes TravelMemory::of(int j, const Held& own, const Held& node, const Bytes& ring) const {
  const Sizes mine = all_.of_heads(size_, j);
  const Shape& s = all_.shape;
  const std::int64_t e = all_.element(), w = all_.wide(), dk = s.dim_qk, dv = s.dim_v;
  const auto bytes = [&](std::int64_t heads_q, std::int64_t heads_kv, const Held& held, std::int64_t of_row,
                         std::int64_t of_key) {
    return s.batch * (heads_q * held.queries * of_row + heads_kv * held.keys * of_key);
  };
  const auto here = [&](std::int64_t of_row, std::int64_t of_key) {
    return bytes(mine.shape.heads_q, mine.shape.heads_kv, node, of_row, of_key);
  };
  const auto messages = [&](std::int64_t of_row, std::int64_t of_key) {  // all heads of own rows, own heads of all rows
    return here(of_row, of_key) + bytes(s.heads_q, key_heads_, own, of_row, of_key) -
           bytes(mine.shape.heads_q, mine.shape.heads_kv, own, of_row, of_key);  // both at once: counted once
  };
  const auto arriving = [&](std::int64_t of_row, std::int64_t of_key) {  // as messages, then also in order
    return std::max(messages(of_row, of_key), 2 * here(of_row, of_key));
  };
  const Bytes kept = kept_by_parts(mine, node.queries, luggage_);
  const std::int64_t row = dk * e, key = (dk + dv) * e;

  const std::int64_t numbers = luggage_.stats ? 1 + row_numbers(luggage_) : luggage_.lse ? 1 : 0;
  const std::int64_t placed = luggage_.stats ? all_.rows(own.queries) * (dv * e + numbers * w) : 0;
  const std::int64_t forward =
      std::max({arriving(row, key), here(row, key) + ring[0],
                here(row + dv * e, key) + kept[0] + placed + messages(dv * e + numbers * w, 0)});

  const std::int64_t note_row = row + dv * e + w;  // q, o and lse; and k and v: kept, or sent again
  const std::int64_t came_row = dv * e + (luggage_.d_lse ? w : 0) + (luggage_.kept ? 0 : note_row),
                     came_key = luggage_.kept ? 0 : key;
  const std::int64_t d_key = (dk + dv) * (sums_keys_ ? w : e);
  const std::int64_t computing = here(came_row + row, came_key + d_key);
  const std::int64_t home = all_.rows(own.queries) * row + all_.kv(own.keys, w);
  const std::int64_t backward =
      (luggage_.kept ? here(note_row, key) : 0) +
      std::max({arriving(came_row, came_key), computing + ring[1], computing + kept[1] + home + messages(row, d_key)});
  return {forward, backward};
}

}  // namespace rootdk::distributed
