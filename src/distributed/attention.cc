// Agree, bring queries and keys together in the way asked for, run the parts, send home what travelled. Outputs are
// written once nothing more is to come from anybody: where a rank fails, nobody's are written in part.
#include "rootdk/distributed/attention.h"

#include <algorithm>
#include <cstring>

#include "base/head_columns.h"
#include "base/memory_errors.h"
#include "base/refuse.h"
#include "distributed/agree.h"
#include "distributed/heads.h"
#include "distributed/rows.h"
#include "distributed/stats_message.h"

namespace rootdk::distributed {

Way parse_way(std::string_view name) {
  for (const Way way : {Way::kRing, Way::kAllGather, Way::kHeads, Way::kTwoLevels})
    if (name == name_of(way)) return way;
  base::refuse("way: '{}', but ring, all_gather, heads or two_levels is wanted", name);
}

namespace {

/// What heads that travelled brought here, and what became of them.
struct Kept {
  Block q, k, v, o, lse;
};

/// One call, once all ranks have agreed on it: who is in which group, and the problem of the heads that are here.
struct Call {
  Call(Transport& transport, const CallArguments& arguments)
      : meter(std::make_shared<Meter>()), everybody{&transport, {}, transport.rank()} {
    for (int rank = 0; rank < transport.ranks(); ++rank) everybody.members.push_back(rank);
    shape = agree(everybody, arguments, meter);
    const Share& share = arguments.share;
    const int ranks = transport.ranks(), me = transport.rank();
    if (share.way == Way::kHeads) node_size = ranks;
    if (share.way == Way::kTwoLevels) node_size = share.ranks_per_node;

    const int first = me / node_size * node_size;
    node.group = {&transport, {}, me - first};
    for (int rank = first; rank < first + node_size; ++rank) {
      node.group.members.push_back(rank);
      node.queries.pieces.push_back(share.queries.pieces[static_cast<std::size_t>(rank)]);
      node.keys.pieces.push_back(share.keys.pieces[static_cast<std::size_t>(rank)]);
    }
    ring.group = {&transport, {}, me / node_size};
    for (int rank = me % node_size; rank < ranks; rank += node_size) ring.group.members.push_back(rank);
    ring.queries = share.queries.over(node_size), ring.keys = share.keys.over(node_size);

    const HeadShare mine = HeadShare::of(shape, node_size, node.group.me);
    whole.problem = problem_of_heads(arguments.problem, mine);
    whole.shape = shape;
    whole.shape.heads_q = mine.q_last - mine.q_first, whole.shape.heads_kv = mine.kv_last - mine.kv_first;
    whole.heads = mine.runs(std::max<std::int64_t>(1, shape.group()));
    whole.meter = meter;
    whole.machine = Machine::here();
    if (share.threads > 0) whole.machine.threads = share.threads;
    gathers = share.way == Way::kAllGather;
  }

  bool travels() const { return node_size > 1; }
  const Pieces& queries() const { return ring.queries.pieces[static_cast<std::size_t>(ring.group.me)]; }
  const Pieces& own_queries() const { return node.queries.pieces[static_cast<std::size_t>(node.group.me)]; }

  SharedMeter meter;
  Group everybody;
  Shape shape;  ///< all heads
  int node_size = 1;
  Ranks node, ring;
  Whole whole;
  bool gathers = false;
};

/// Runs it with its traffic counted. What this rank raises the others hear.
template <class Run>
auto counted(Transport& transport, Notes* notes, const CallArguments& arguments, const Run& run) {
  const auto bytes = [&](std::initializer_list<Channel> channels, std::int64_t Traffic::*what) {
    std::int64_t sum = 0;
    for (const Channel channel : channels) sum += transport.sent(channel).*what;
    return sum;
  };
  const auto data = {Channel::kData, Channel::kGradients, Channel::kReturn};
  const std::int64_t data_bytes = bytes(data, &Traffic::bytes), messages = bytes(data, &Traffic::messages),
                     control_bytes = bytes({Channel::kControl}, &Traffic::bytes);
  try {
    return base::with_memory_errors([&] {
      Call call(transport, arguments);
      struct Count {
        std::function<void()> at_end;
        ~Count() { at_end(); }
      } count{[&] {
        if (notes)
          notes->usage = {bytes(data, &Traffic::bytes) - data_bytes, bytes(data, &Traffic::messages) - messages,
                          bytes({Channel::kControl}, &Traffic::bytes) - control_bytes, call.meter->peak()};
      }};
      return run(call);
    });
  } catch (const RankError&) {
    throw;  // the others have seen it, too, or will
  } catch (const std::exception& error) {
    transport.raise(error.what());
    throw;
  }
}

/// Of this rank's rows, piece by piece.
Stats local_stats(const Call& call, const RowTensors& rows, const ConstTensor& lse) {
  if (call.shape.len_q == 0) return stats_of_rows(rows, lse, call.whole.problem.stats_options);
  Stats stats;
  std::int64_t place = 0;
  for (const Piece& piece : call.own_queries()) {
    RowTensors part;
    for (Tensor RowTensors::*const row : row_tensors()) part.*row = cut(rows.*row, kLength, place, piece.length());
    StatsOptions options = call.whole.problem.stats_options;
    options.first_query = piece.begin;
    stats = merge(stats, stats_of_rows(part, cut(lse, kLength, place, piece.length()), options));
    place += piece.length();
  }
  return stats;
}

/// Keeps what kBasic promises.
void reduce_to_basic(HeadStats& head) {
  HeadStats basic;
#define ROOTDK_ROW_COUNT(level, name, when, doc) \
  if (base::words::level == StatsLevel::kBasic) basic.name = head.name;
#define ROOTDK_MAXIMUM(name, doc) basic.name = head.name;
#define ROOTDK_MEAN(name, value, doc) basic.name = head.name;
#include "rootdk/statistics.def"
  for (KeyBucket& bucket : head.by_keys) reduce_to_basic(bucket.stats);
  basic.by_keys = std::move(head.by_keys);
  head = std::move(basic);
}

/// Every rank's, merged in their order: the same on each.
Stats merged_over_ranks(const Call& call, const Stats& local) {
  const Group& all = call.everybody;
  const std::vector<std::byte> bytes = to_bytes(local);
  const auto size = static_cast<std::int64_t>(bytes.size());
  const Message length = make_message(call.meter, sizeof size), message = make_message(call.meter, size);
  std::memcpy(length->data(), &size, sizeof size);
  std::memcpy(message->data(), bytes.data(), bytes.size());
  std::vector<std::int64_t> sizes(all.members.size(), sizeof size);
  const std::vector<Message> lengths = all.all(Channel::kControl, length, sizes, call.meter);
  for (std::size_t i = 0; i < sizes.size(); ++i) std::memcpy(&sizes[i], lengths[i]->data(), sizeof size);
  Stats stats;
  for (const Message& one : all.all(Channel::kControl, message, sizes, call.meter))
    stats = merge(stats, stats_from_bytes(*one));
  const StatsLevel level = call.whole.problem.stats;
  stats.level = level;
  for (HeadStats& head : stats.per_head)
    if (level == StatsLevel::kBasic) reduce_to_basic(head);
  return stats;
}

void copy_if_wanted(const ConstTensor& from, const Tensor& to) {
  if (to.present()) copy(from, to);
}

void write(const Outputs& found, const Outputs& outputs) {
  copy(found.o, outputs.o);
  copy_if_wanted(found.lse, outputs.lse);
  for (Tensor RowTensors::*const row : row_tensors()) copy_if_wanted(found.rows.*row, outputs.rows.*row);
}

/// From who computed heads to whose rows they are; lse and row tensors where somebody wants them.
void send_home(const Call& call, const HeadTravel& travel, const Block& o, const Outputs& result,
               const Outputs& outputs) {
  std::vector<Leg> legs = {{false, o.tensor(), outputs.o}};
  if (outputs.lse.present()) legs.push_back({false, result.lse, outputs.lse});
  if (call.whole.problem.stats != StatsLevel::kNone)
    for (Tensor RowTensors::*const row : row_tensors()) legs.push_back({false, result.rows.*row, outputs.rows.*row});
  travel.back(legs);
}

Stats run_forward(const Call& call, const Inputs& inputs, const Outputs& outputs, Notes* notes) {
  const bool stats = call.whole.problem.stats != StatsLevel::kNone;
  Inputs here = inputs;
  const HeadTravel travel(call.node, call.shape, call.meter);
  auto kept = std::make_shared<Kept>();
  if (call.travels()) {
    std::vector<Block> blocks = travel.there({{false, inputs.q}, {true, inputs.k}, {true, inputs.v}});
    kept->q = std::move(blocks[0]), kept->k = std::move(blocks[1]), kept->v = std::move(blocks[2]);
    here = {kept->q.tensor(), kept->k.tensor(), kept->v.tensor()};
  }
  ForwardParts parts(call.whole, call.queries(), here.q);
  (call.gathers ? all_gather_forward : ring_forward)(call.ring, call.whole, here.k, here.v, parts);
  const Outputs result = parts.result();
  if (!call.travels()) {
    Stats found = stats ? merged_over_ranks(call, local_stats(call, result.rows, result.lse)) : Stats{};
    write(result, outputs);
    return found;
  }
  kept->o = Block(call.meter, call.shape.dtype, result.o.shape);
  copy(result.o, kept->o.tensor());
  Outputs home = outputs;
  RowBlocks rows;
  Block o, lse;
  if (stats) {
    const Extents shape = {call.shape.batch, call.shape.heads_q, length_of(call.own_queries()), 1};
    o = Block(call.meter, call.shape.dtype, outputs.o.shape), lse = Block(call.meter, call.whole.work(), shape);
    rows = RowBlocks(call.meter, call.whole.work(), shape);
    home = {o.tensor(), lse.tensor(), rows.tensors()};
  }
  send_home(call, travel, kept->o, result, home);
  if (notes) {
    kept->lse = Block(call.meter, call.whole.work(), result.lse.shape);
    copy(result.lse, kept->lse.tensor());
    notes->kept = kept;
  }
  if (!stats) return {};
  Stats found = merged_over_ranks(call, local_stats(call, home.rows, home.lse));
  write(home, outputs);
  return found;
}

/// One number per head, summed over ranks in their order.
void write_head_sums(const Call& call, const HeadSums& sums, const Gradients& gradients) {
  const auto heads = static_cast<std::size_t>(call.shape.heads_q),
             first = static_cast<std::size_t>(HeadShare::of(call.shape, call.node_size, call.node.group.me).q_first);
  const struct {
    const std::vector<double>& here;
    std::span<float> to;
  } parts[] = {{sums.scale, gradients.d_scale},
               {sums.sink, gradients.d_sink},
               {sums.gain, gradients.d_log_n_gain},
               {sums.offset, gradients.d_log_n_offset}};
  std::vector<double> mine(std::size(parts) * heads), total(mine.size());
  for (std::size_t p = 0; p < std::size(parts); ++p)
    std::copy(parts[p].here.begin(), parts[p].here.end(),
              mine.begin() + static_cast<std::ptrdiff_t>(p * heads + first));
  const auto bytes = static_cast<std::int64_t>(mine.size() * sizeof(double));
  const Message message = make_message(call.meter, bytes);
  std::memcpy(message->data(), mine.data(), static_cast<std::size_t>(bytes));
  const std::vector<std::int64_t> sizes(call.everybody.members.size(), bytes);
  for (const Message& one : call.everybody.all(Channel::kControl, message, sizes, call.meter)) {
    std::memcpy(mine.data(), one->data(), static_cast<std::size_t>(bytes));
    for (std::size_t i = 0; i < total.size(); ++i) total[i] += mine[i];
  }
  for (std::size_t p = 0; p < std::size(parts); ++p)
    for (std::size_t h = 0; h < parts[p].to.size(); ++h) parts[p].to[h] = static_cast<float>(total[p * heads + h]);
}

void run_backward(const Call& call, const BackwardInputs& inputs, const Gradients& gradients, const Notes* notes) {
  const auto gather_or_ring = call.gathers ? all_gather_backward : ring_backward;
  if (!call.travels()) {
    BackwardParts parts(call.whole, call.queries(), inputs);
    const KvMessage d_kv = gather_or_ring(call.ring, call.whole, inputs.k, inputs.v, parts);
    write_head_sums(call, parts.sums(), gradients);
    parts.write(gradients.d_q);
    copy_if_wanted(d_kv.k, gradients.d_k);
    copy_if_wanted(d_kv.v, gradients.d_v);
    return;
  }
  const HeadTravel travel(call.node, call.shape, call.meter);
  std::vector<Leg> legs = {{false, inputs.d_o}};
  if (inputs.d_lse.present()) legs.push_back({false, inputs.d_lse});
  const std::size_t kept_from = legs.size();
  const auto* kept = notes ? static_cast<const Kept*>(notes->kept.get()) : nullptr;
  if (!kept)
    legs.insert(legs.end(),
                {{false, inputs.q}, {true, inputs.k}, {true, inputs.v}, {false, inputs.o}, {false, inputs.lse}});
  const std::vector<Block> came = travel.there(legs);
  const auto either = [&](const Block Kept::*block, std::size_t i) -> ConstTensor {
    return kept ? (kept->*block).tensor() : came[kept_from + i].tensor();
  };
  BackwardInputs here{either(&Kept::q, 0), either(&Kept::k, 1),   either(&Kept::v, 2),
                      either(&Kept::o, 3), either(&Kept::lse, 4), came[0].tensor()};
  if (inputs.d_lse.present()) here.d_lse = came[1].tensor();

  BackwardParts parts(call.whole, call.queries(), here);
  const DType dtype = call.shape.dtype,
              keys_dtype = shares_key_heads(call.shape, call.node_size) ? call.whole.work() : dtype;
  const Block d_q(call.meter, dtype, here.q.shape), d_k(call.meter, keys_dtype, here.k.shape),
      d_v(call.meter, keys_dtype, here.v.shape);
  {
    const KvMessage d_kv = gather_or_ring(call.ring, call.whole, here.k, here.v, parts);
    copy(d_kv.k, d_k.tensor()), copy(d_kv.v, d_v.tensor());
  }
  const HeadSums sums = parts.sums();
  parts.write(d_q.tensor());
  const Block home_q(call.meter, dtype, inputs.q.shape), home_k(call.meter, call.whole.work(), inputs.k.shape),
      home_v(call.meter, call.whole.work(), inputs.v.shape);
  travel.back({{false, d_q.tensor(), home_q.tensor()},
               {true, d_k.tensor(), home_k.tensor()},
               {true, d_v.tensor(), home_v.tensor()}});
  write_head_sums(call, sums, gradients);
  copy_if_wanted(home_q.tensor(), gradients.d_q);
  copy_if_wanted(home_k.tensor(), gradients.d_k);
  copy_if_wanted(home_v.tensor(), gradients.d_v);
}

}  // namespace

Stats forward(Transport& transport, const Problem& problem, const Share& share, const Inputs& inputs,
              const Outputs& outputs, Notes* notes) {
  const CallArguments arguments{problem, share, inputs, &outputs};
  return counted(transport, notes, arguments,
                 [&](const Call& call) { return run_forward(call, inputs, outputs, notes); });
}

void backward(Transport& transport, const Problem& problem, const Share& share, const BackwardInputs& inputs,
              const Gradients& gradients, Notes* notes) {
  const Inputs rows{inputs.q, inputs.k, inputs.v};
  const CallArguments arguments{problem, share, rows, nullptr, &inputs, &gradients, notes && notes->kept};
  counted(transport, notes, arguments, [&](const Call& call) { run_backward(call, inputs, gradients, notes); });
}

}  // namespace rootdk::distributed
