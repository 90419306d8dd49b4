// A rank of the tests over MPI, to be run by mpirun. What it is to do is its first argument:
//   sweep COUNT FIRST   random problems in every way, held by rank 0 against the error rule and the cost model
//   again               transports one after the other, and two at once of which the first goes first
//   wrong               rank 2 has another shape: every rank must say so, and end well
//   stall WHEN [WAY [backward]]   rank 1 stops (SIGSTOP) at once, later (amid rows) or at_last (amid numbers a head):
//                                 the others must name it in time, and have written nothing
//   die WHEN [WAY [backward]]     rank 1 is killed (SIGKILL)
//   raise WHEN [WAY [backward]]   rank 1 throws: the others must hear why at once
#include <fmt/format.h>
#include <mpi.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string_view>

#include "distributed/over_ranks.h"
#include "rootdk/mpi.h"
#include "support/close_stats.h"
#include "support/tolerance.h"

namespace rootdk::test {
namespace {

using namespace std::chrono_literals;

std::string wrong_bytes(const Case& c, const Share& share, const OverRanks& over, bool keep) {
  if (share.way == Way::kTwoLevels && share.queries.ranks() == share.ranks_per_node) return {};
  distributed::Cluster cluster;
  cluster.ranks_per_node = share.ranks_per_node;
  const auto choice = distributed::plan(c.problem.mask, c.shape, share.queries, share.keys, cluster,
                                        {true, true, !c.d_lse.empty(), keep});
  const distributed::Cost& cost = choice.costs[static_cast<std::size_t>(share.way)];
  if (!cost.refused.empty()) return {};
  std::string out;
  for (std::size_t rank = 0; rank < over.forward.size(); ++rank)
    if (cost.forward.sent[rank] != over.forward[rank].data_bytes ||
        cost.backward.sent[rank] != over.backward[rank].data_bytes)
      out += fmt::format("rank {} sent {} and {} bytes, but {} and {} were predicted\n", rank,
                         over.forward[rank].data_bytes, over.backward[rank].data_bytes, cost.forward.sent[rank],
                         cost.backward.sent[rank]);
  return out;
}

/// How many were out, on rank 0.
int sweep(Transport& transport, int count, int first) {
  int wrong = 0, tried = 0;
  for (int seed = first; seed < first + count; ++seed) {
    const auto c = random_shared_case(static_cast<std::uint64_t>(seed), 1 << 14);
    Rng rng(static_cast<std::uint64_t>(seed));
    std::unique_ptr<Yardstick> yardstick;
    if (transport.rank() == 0) yardstick = std::make_unique<Yardstick>(*c);
    for (const Way way : kWays) {
      if (!takes(*c, way)) continue;
      const Share share = random_share(rng, *c, transport.ranks(), way);
      const bool keep = rng.chance(0.5);
      OverRanks over = run_over(transport, *c, share, {.keep = keep});
      if (transport.rank() != 0) continue;
      over.result.d_bias = yardstick->exact().d_bias;  // attention over ranks has none
      std::string out = yardstick->judge(over.result) + wrong_bytes(*c, share, over, keep);
      if (!over.alike) out += "statistics or sums differ between ranks\n";
      out += far_statistics(*c, over.result, yardstick->exact(), floors(*c, yardstick->exact()));
      ++tried;
      if (out.empty()) continue;
      fmt::print(stderr, "seed {}, {}:\n{}{}\n", seed, distributed::name_of(way), out, c->describe());
      ++wrong;
    }
  }
  if (transport.rank() == 0) fmt::print("{} ranks: {} of {} runs are out\n", transport.ranks(), wrong, tried);
  return wrong > 0 || (transport.rank() == 0 && tried < count) ? 1 : 0;
}

/// Does something when rows are about to move, or when the first numbers are that follow them.
class Interrupted final : public Transport {
 public:
  Interrupted(Transport& inner, bool at_last, std::function<void()> what)
      : inner_(inner), at_last_(at_last), what_(std::move(what)) {}
  int rank() const override { return inner_.rank(); }
  int ranks() const override { return inner_.ranks(); }
  void raise(std::string_view why) noexcept override { inner_.raise(why); }

 protected:
  std::unique_ptr<distributed::Transfer> start(distributed::Channel channel, std::vector<distributed::Send> sends,
                                               std::vector<distributed::Receive> receives) override {
    const bool rows = channel != distributed::Channel::kControl;
    moved_ |= rows;
    if (at_last_ ? moved_ && !rows : rows) what_();
    return inner_.begin(channel, std::move(sends), std::move(receives));
  }

 private:
  Transport& inner_;
  bool at_last_, moved_ = false;
  std::function<void()> what_;
};

struct Interruption {
  std::string_view when;  ///< at_once, later or at_last
  Way way = Way::kRing;
  bool backward = false;
  std::chrono::duration<double> in_time;  ///< for the others to say so
  std::function<void()> what;
};

/// One call, in which rank 1 does something else; how each rank ends goes to standard output.
int interrupted(Transport& transport, const Interruption& other) {
  const auto c = random_case(11, {.work = 1 << 12, .paged = false, .padding = false});
  c->problem = {};
  const RankLayout queries = RankLayout::even(c->shape.len_q, transport.ranks()),
                   keys = RankLayout::even(c->shape.len_kv, transport.ranks());
  const Share share{queries, keys, other.way, 2, 1};
  RankCase mine(*c, share, transport.rank());
  if (other.backward) distributed::forward(transport, mine.problem, share, mine.inputs(), mine.outputs);
  const auto written = other.backward ? std::vector{&mine.d_q, &mine.d_k, &mine.d_v} : std::vector{&mine.o, &mine.lse};
  for (Buffer* const buffer : written) buffer->fill(77);
  Interrupted interrupts(transport, other.when == "at_last", other.what);
  const bool is_it = transport.rank() == 1;
  const auto start = std::chrono::steady_clock::now();
  try {
    if (is_it && other.when == "at_once") other.what();
    Transport& used = is_it ? static_cast<Transport&>(interrupts) : transport;
    if (other.backward) distributed::backward(used, mine.problem, share, mine.backward_inputs(), mine.gradients());
    else distributed::forward(used, mine.problem, share, mine.inputs(), mine.outputs);
  } catch (const std::exception& error) {
    const bool late = std::chrono::steady_clock::now() - start > other.in_time;
    bool wrote = false;
    for (const Buffer* const buffer : written)
      for (const double x : buffer->values()) wrote |= x != 77;
    fmt::print("[{}] {}{}\n", error.what(), late ? "late" : "in time", wrote ? ", half-written" : "");
    std::fflush(stdout);
    return 3;
  }
  return 0;
}

int wrong(Transport& transport) {
  const auto c = random_case(11, {.work = 1 << 12, .paged = false, .padding = false});
  c->problem = {};
  const Share share{RankLayout::even(c->shape.len_q, transport.ranks()),
                    RankLayout::even(c->shape.len_kv, transport.ranks()), Way::kRing, 1, 1};
  RankCase mine(*c, share, transport.rank());
  Inputs inputs = mine.inputs();
  if (transport.rank() == 2) inputs.q.shape[2] += 1;
  try {
    distributed::forward(transport, mine.problem, share, inputs, mine.outputs);
  } catch (const distributed::RankError& error) {
    const bool moved = transport.sent(distributed::Channel::kData).bytes != 0;
    fmt::print("[{}] {}\n", error.rank(), moved ? "rows moved" : error.what());
    return 0;
  }
  return 3;
}

int again() {
  int wrong = 0;
  auto transport = distributed::mpi_transport();
  for (int i = 0; i < 3; ++i) {
    wrong += sweep(*transport, 1, 7 + i);
    if (i > 0) transport.reset();
    transport = distributed::mpi_transport();
  }
  return wrong;
}

int run_rank(int count, char** arguments) {
  const std::string_view what = count > 1 ? arguments[1] : "";
  if (what == "again") return again();
  const auto transport = distributed::mpi_transport({.timeout = what == "sweep" ? 60s : 3s});
  if (what == "sweep") return sweep(*transport, std::atoi(arguments[2]), std::atoi(arguments[3]));
  if (what == "wrong") return wrong(*transport);
  // In time is 3 s and a quarter of them, on a busy machine.
  Interruption other{.when = count > 2 ? arguments[2] : "", .in_time = 5s, .what = {}};
  if (count > 3) other.way = distributed::parse_way(arguments[3]);
  other.backward = count > 4;
  if (what == "stall") other.what = [] { kill(getpid(), SIGSTOP); };
  if (what == "die") other.what = [] { kill(getpid(), SIGKILL); };
  if (what == "raise")
    other.what = [] { throw Error(ErrorCode::kOutOfMemory, "out of memory, as asked"); }, other.in_time = 2s;
  if (!other.what) return 2;
  const int status = interrupted(*transport, other);
  if (status == 0) return 0;
  // Others have what they need to say as much; then the job ends, with whoever is stopped.
  std::this_thread::sleep_for(2s);
  MPI_Abort(MPI_COMM_WORLD, status);
  return status;
}

}  // namespace
}  // namespace rootdk::test

int main(int count, char** arguments) { return rootdk::test::run_rank(count, arguments); }
