// A case shared out over the ranks of a transport, run there, and put together again on rank 0: what the error rule
// judges.
#pragma once

#include <algorithm>
#include <cstring>
#include <thread>
#include <vector>

#include "base/row_tensors.h"
#include "rootdk/distributed.h"
#include "support/bits.h"
#include "support/case.h"
#include "support/run_case.h"

namespace rootdk::test {

using RankLayout = distributed::Layout;
using distributed::Pieces;
using distributed::Share;
using distributed::Transport;
using distributed::Way;

inline constexpr Way kWays[] = {Way::kRing, Way::kAllGather, Way::kHeads, Way::kTwoLevels};

/// Rows of the length axis that lie in pieces, in a buffer of their own. One row for all stays one.
inline Buffer rows_of(const Buffer& whole, const Pieces& pieces, std::int64_t length) {
  if (whole.empty()) return {};
  const ConstTensor t = whole.tensor();
  if (t.shape[2] != length) return whole;
  std::int64_t count = 0, place = 0;
  for (const distributed::Piece& piece : pieces) count += piece.length();
  Buffer out(t.dtype, {t.shape[0], t.shape[1], count, t.shape[3]});
  for (const distributed::Piece& piece : pieces)
    for (std::int64_t i = piece.begin; i < piece.end; ++i, ++place)
      for (std::int64_t b = 0; b < t.shape[0]; ++b)
        for (std::int64_t h = 0; h < t.shape[1]; ++h)
          for (std::int64_t d = 0; d < t.shape[3]; ++d) out.set(b, h, place, d, whole.get(b, h, i, d));
  return out;
}

/// What a rank holds of a case, and room for what it gets.
struct RankCase {
  RankCase(const Case& c, const Share& share, int rank) : problem(c.problem) {
    const Shape& s = c.shape;
    const Pieces &mine = share.queries.pieces[static_cast<std::size_t>(rank)],
                 &keys = share.keys.pieces[static_cast<std::size_t>(rank)];
    q = rows_of(c.q, mine, s.len_q), k = rows_of(c.k, keys, s.len_kv), v = rows_of(c.v, keys, s.len_kv);
    d_o = rows_of(c.d_o, mine, s.len_q), d_lse = rows_of(c.d_lse, mine, s.len_q);
    // A single query is not taken for a row that serves all.
    const bool own_rows = s.len_q > 1;
    allowed = own_rows ? rows_of(c.allowed, mine, s.len_q) : c.allowed;
    bias = own_rows ? rows_of(c.bias, mine, s.len_q) : c.bias;
    problem.mask.allowed = allowed.tensor(), problem.mask.bias = bias.tensor();
    const DType row_type = s.dtype == DType::kF64 ? DType::kF64 : DType::kF32;
    const std::int64_t len_q = share.queries.length(rank), len_kv = share.keys.length(rank);
    const Extents row_shape = {s.batch, s.heads_q, len_q, 1};
    o = Buffer(s.dtype, {s.batch, s.heads_q, len_q, s.dim_v}), lse = Buffer(row_type, row_shape);
    outputs = {o.tensor(), lse.tensor()};
    const auto give = [&](Tensor RowTensors::*tensor) {
      rows.emplace_back(row_type, row_shape);
      outputs.rows.*tensor = rows.back().tensor();
    };
    if (problem.stats != StatsLevel::kNone) {
      for (const base::BasicRowTensor& row : base::kBasicRowTensors) give(row.tensor);
      for (const base::FullRowTensor& row : base::kFullRowTensors) give(row.tensor);
    }
    d_q = Buffer(s.dtype, {s.batch, s.heads_q, len_q, s.dim_qk});
    d_k = Buffer(s.dtype, {s.batch, s.heads_kv, len_kv, s.dim_qk});
    d_v = Buffer(s.dtype, {s.batch, s.heads_kv, len_kv, s.dim_v});
    const bool log_n = problem.scale.length == Scale::Length::kLogN;
    d_scale.resize(static_cast<std::size_t>(s.heads_q)), d_sink.resize(problem.sink.size());
    d_gain.resize(log_n ? d_scale.size() : 0), d_offset.resize(d_gain.size());
  }
  RankCase(const RankCase&) = delete;
  RankCase& operator=(const RankCase&) = delete;

  Inputs inputs() const { return {q.tensor(), k.tensor(), v.tensor()}; }
  BackwardInputs backward_inputs() const {
    return {q.tensor(), k.tensor(), v.tensor(), o.tensor(), lse.tensor(), d_o.tensor(), d_lse.tensor()};
  }
  Gradients gradients() { return {d_q.tensor(), d_k.tensor(), d_v.tensor(), d_scale, {}, d_sink, d_gain, d_offset}; }
  bool guards_intact() const {
    for (const Buffer* buffer : {&o, &lse, &d_q, &d_k, &d_v})
      if (!buffer->guards_intact()) return false;
    return true;
  }

  Problem problem;
  Buffer q, k, v, d_o, d_lse, allowed, bias;
  Buffer o, lse, d_q, d_k, d_v;
  std::vector<Buffer> rows;
  Outputs outputs;
  std::vector<float> d_scale, d_sink, d_gain, d_offset;
};

/// Every rank's numbers on rank 0, by messages of the transport.
inline std::vector<std::vector<double>> gathered(Transport& transport, const std::vector<double>& mine) {
  using distributed::Channel;
  using distributed::Message;
  const auto message = [](std::size_t bytes) { return std::make_shared<std::vector<std::byte>>(bytes); };
  const auto size = message(sizeof(std::size_t)), numbers = message(mine.size() * sizeof(double) + 1);
  const std::size_t count = mine.size();
  std::memcpy(size->data(), &count, sizeof count);
  std::memcpy(numbers->data(), mine.data(), count * sizeof(double));
  if (transport.rank() != 0) {
    transport.begin(Channel::kControl, {{0, size}, {0, numbers}}, {})->wait();
    return {};
  }
  std::vector<std::vector<double>> all = {mine};
  for (int rank = 1; rank < transport.ranks(); ++rank) {
    const Message length = message(sizeof(std::size_t));
    transport.begin(Channel::kControl, {}, {{rank, length}})->wait();
    std::size_t there = 0;
    std::memcpy(&there, length->data(), sizeof there);
    const Message values = message(there * sizeof(double) + 1);
    transport.begin(Channel::kControl, {}, {{rank, values}})->wait();
    all.emplace_back(there);
    std::memcpy(all.back().data(), values->data(), there * sizeof(double));
  }
  return all;
}

struct OverRanks {
  Result result;                                      ///< on rank 0
  std::vector<distributed::Usage> forward, backward;  ///< of each rank, on rank 0
  bool alike = true;                                  ///< what every rank is told was the same on each
};

struct OverRanksOptions {
  bool keep = true;  ///< notes go from forward to backward
};

/// Where a part of the result lies: [batch, heads, length, dim].
struct WholePart {
  std::vector<double>* whole;
  std::int64_t heads, dim;
  bool of_keys;
};

inline OverRanks run_over(Transport& transport, const Case& c, const Share& share,
                          const OverRanksOptions& options = {}) {
  const Shape& s = c.shape;
  RankCase mine(c, share, transport.rank());
  distributed::Notes forward_notes, backward_notes;
  const Stats stats = distributed::forward(transport, mine.problem, share, mine.inputs(), mine.outputs, &forward_notes);
  if (options.keep) backward_notes.kept = forward_notes.kept;
  distributed::backward(transport, mine.problem, share, mine.backward_inputs(), mine.gradients(), &backward_notes);

  std::vector<double> same;  // on every rank
  for (const HeadStats& head : stats.per_head)
    for (const double x : numbers(head)) same.push_back(x);
  for (const std::vector<float>* sums : {&mine.d_scale, &mine.d_sink, &mine.d_gain, &mine.d_offset})
    same.insert(same.end(), sums->begin(), sums->end());

  std::vector<double> flat;
  for (const distributed::Usage& usage : {forward_notes.usage, backward_notes.usage})
    for (const std::int64_t x : {usage.data_bytes, usage.data_messages, usage.control_bytes, usage.peak_bytes})
      flat.push_back(static_cast<double>(x));
  flat.push_back(mine.guards_intact());
  flat.insert(flat.end(), same.begin(), same.end());
  std::vector<const Buffer*> buffers = {&mine.o, &mine.lse, &mine.d_q, &mine.d_k, &mine.d_v};
  for (const Buffer& row : mine.rows) buffers.push_back(&row);
  for (const Buffer* buffer : buffers)
    for (const double x : buffer->values()) flat.push_back(x);

  const std::vector<std::vector<double>> all = gathered(transport, flat);
  OverRanks out;
  if (transport.rank() != 0) return out;
  Result& r = out.result;
  r.stats = stats;
  r.d_scale.assign(mine.d_scale.begin(), mine.d_scale.end()), r.d_sink.assign(mine.d_sink.begin(), mine.d_sink.end());
  r.d_log_n_gain.assign(mine.d_gain.begin(), mine.d_gain.end());
  r.d_log_n_offset.assign(mine.d_offset.begin(), mine.d_offset.end());
  std::vector<std::vector<double>> rows(mine.rows.size());
  std::vector<WholePart> parts = {{&r.o, s.heads_q, s.dim_v, false},
                                  {&r.lse, s.heads_q, 1, false},
                                  {&r.d_q, s.heads_q, s.dim_qk, false},
                                  {&r.d_k, s.heads_kv, s.dim_qk, true},
                                  {&r.d_v, s.heads_kv, s.dim_v, true}};
  for (std::vector<double>& row : rows) parts.push_back({&row, s.heads_q, 1, false});
  for (const WholePart& part : parts)
    part.whole->resize(static_cast<std::size_t>(s.batch * part.heads * (part.of_keys ? s.len_kv : s.len_q) * part.dim));
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    auto at = all[rank].begin();
    const auto usage = [&] {
      distributed::Usage u;
      for (std::int64_t* x : {&u.data_bytes, &u.data_messages, &u.control_bytes, &u.peak_bytes})
        *x = static_cast<std::int64_t>(*at++);
      return u;
    };
    out.forward.push_back(usage()), out.backward.push_back(usage());
    r.guards_intact = r.guards_intact && *at++ != 0;
    for (const double x : same) out.alike = out.alike && equal_bits(x, *at++);
    for (const WholePart& part : parts) {
      const RankLayout& layout = part.of_keys ? share.keys : share.queries;
      const std::int64_t length = part.of_keys ? s.len_kv : s.len_q;
      for (std::int64_t head = 0; head < s.batch * part.heads; ++head)
        for (const distributed::Piece& piece : layout.pieces[rank])
          for (std::int64_t i = piece.begin; i < piece.end; ++i)
            for (std::int64_t d = 0; d < part.dim; ++d)
              (*part.whole)[static_cast<std::size_t>((head * length + i) * part.dim + d)] = *at++;
    }
  }
  if (!rows.empty()) {
    r.raw_max = rows[0], r.score_max = rows[1], r.p_max = rows[2];
    r.rows.assign(rows.begin() + 3, rows.end());
  }
  return out;
}

/// Ranks as threads of this process; what one throws is thrown here (the first rank's).
template <class Run>
void on_threads(int ranks, std::chrono::milliseconds timeout, const Run& run) {
  const auto transports = distributed::in_process_transports(ranks, timeout);
  std::vector<std::exception_ptr> errors(transports.size());
  {
    std::vector<std::jthread> threads;
    for (std::size_t rank = 0; rank < transports.size(); ++rank)
      threads.emplace_back([&, rank] {
        try {
          run(*transports[rank]);
        } catch (...) {
          errors[rank] = std::current_exception();
          transports[rank]->raise("this rank of the test failed");
        }
      });
  }
  for (const std::exception_ptr& error : errors)
    if (error) std::rethrow_exception(error);
}

inline OverRanks run_on_threads(int ranks, const Case& c, const Share& share, const OverRanksOptions& options = {}) {
  OverRanks out;
  on_threads(ranks, std::chrono::seconds(30), [&](Transport& transport) {
    OverRanks mine = run_over(transport, c, share, options);
    if (transport.rank() == 0) out = std::move(mine);
  });
  return out;
}

/// A random problem that ranks take, drawn as all others are.
inline std::unique_ptr<Case> random_shared_case(std::uint64_t seed, std::int64_t work = 1 << 15) {
  auto c = random_case(seed, {.work = work, .longest = 512, .paged = false});
  c->problem.dropout = {};
  c->problem.stats = StatsLevel::kFull;
  return c;
}

inline RankLayout random_layout(Rng& rng, std::int64_t length, int ranks) {
  switch (rng.integer(0, 3)) {
    case 0: return RankLayout::even(length, ranks);
    case 1: return RankLayout::zigzag(length, ranks);
    case 2: {  // runs of any length, some of them empty
      std::vector<std::int64_t> cuts = {0, length}, lengths;
      for (int r = 1; r < ranks; ++r) cuts.push_back(rng.integer(0, length));
      std::sort(cuts.begin(), cuts.end());
      for (std::size_t r = 1; r < cuts.size(); ++r) lengths.push_back(cuts[r] - cuts[r - 1]);
      return RankLayout::contiguous(lengths);
    }
    default: {  // documents of any length
      std::vector<std::int64_t> starts = {0, length};
      for (int d = 0; d < 4; ++d) starts.push_back(rng.integer(0, length));
      std::sort(starts.begin(), starts.end());
      return RankLayout::dealt(starts, ranks, rng.chance(0.5));
    }
  }
}

inline Share random_share(Rng& rng, const Case& c, int ranks, Way way) {
  Share share;
  share.queries = random_layout(rng, c.shape.len_q, ranks);
  share.keys =
      c.shape.len_q == c.shape.len_kv && rng.chance(0.6) ? share.queries : random_layout(rng, c.shape.len_kv, ranks);
  share.way = way;
  share.ranks_per_node = ranks % 2 == 0 ? 2 : 1;
  share.threads = 1;
  return share;
}

/// Masks with a row for each query do not travel with heads.
inline bool takes(const Case& c, Way way) {
  if (way == Way::kRing || way == Way::kAllGather) return true;
  for (const Buffer* dense : {&c.allowed, &c.bias})
    if (!dense->empty() && dense->tensor().shape[2] != 1) return false;
  return true;
}

}  // namespace rootdk::test
