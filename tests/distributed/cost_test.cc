// The cost model against what was sent and allocated, by count; memory falls with the number of ranks.
#include <gtest/gtest.h>

#include "distributed/over_ranks.h"
#include "support/message.h"

namespace rootdk::test {
namespace {

using distributed::Choice;
using distributed::Cluster;
using distributed::Cost;
using distributed::Luggage;
using distributed::PassCost;

const Cost& cost_of(const Choice& choice, Way way) { return choice.costs[static_cast<std::size_t>(way)]; }

void expect_sent(const PassCost& predicted, const std::vector<distributed::Usage>& measured, const char* pass) {
  SCOPED_TRACE(pass);
  ASSERT_EQ(predicted.sent.size(), measured.size());
  std::int64_t messages = 0;
  for (std::size_t rank = 0; rank < measured.size(); ++rank) {
    EXPECT_EQ(predicted.sent[rank], measured[rank].data_bytes) << "rank " << rank;
    messages += measured[rank].data_messages;
  }
  EXPECT_EQ(predicted.messages, messages);
}

TEST(Cost, BytesAndMessagesAreExact) {
  int tried = 0;
  const int problems = std::min(problem_count(150), 150);
  for (int seed = 0; seed < problems; ++seed) {
    const auto c = random_shared_case(static_cast<std::uint64_t>(seed) + 1000, 1 << 12);
    if (seed % 3 == 0) c->problem.stats = StatsLevel::kNone;
    Rng rng(static_cast<std::uint64_t>(seed));
    const int ranks = static_cast<int>(rng.integer(1, 3)) * 2;
    for (const Way way : kWays) {
      if (!takes(*c, way)) continue;
      const Share share = random_share(rng, *c, ranks, way);
      if (way == Way::kTwoLevels && ranks == share.ranks_per_node) continue;  // one node: the model calls that heads
      SCOPED_TRACE("seed " + std::to_string(seed) + ", " + std::to_string(ranks) + " ranks, " +
                   distributed::name_of(way) + "\n" + c->describe());
      const bool keep = rng.chance(0.5);
      const OverRanks over = run_on_threads(ranks, *c, share, {.keep = keep});
      Cluster cluster;
      cluster.ranks_per_node = share.ranks_per_node;
      const Luggage luggage{true, c->problem.stats != StatsLevel::kNone, !c->d_lse.empty(), keep};
      const Choice choice = plan(c->problem.mask, c->shape, share.queries, share.keys, cluster, luggage);
      expect_sent(cost_of(choice, way).forward, over.forward, "forward");
      expect_sent(cost_of(choice, way).backward, over.backward, "backward");
      ++tried;
      if (HasFailure()) return;
    }
  }
  EXPECT_GT(tried, 2 * problems);
}

std::int64_t peak(const std::vector<distributed::Usage>& usages) {
  std::int64_t most = 0;
  for (const distributed::Usage& usage : usages) most = std::max(most, usage.peak_bytes);
  return most;
}

/// Of the engine, at most: a rank's queries and keys, or all of those that its heads have. With statistics, full ones.
std::int64_t workspace(const Case& c, Way way, int ranks, int node, Pass pass) {
  Shape shape = c.shape;
  shape.dtype = DType::kF32;
  const std::int64_t heads = way == Way::kHeads ? ranks : way == Way::kTwoLevels ? node : 1;
  shape.heads_q /= heads, shape.heads_kv = std::max<std::int64_t>(1, shape.heads_kv / heads);
  shape.len_q /= ranks / heads, shape.len_kv /= way == Way::kAllGather ? 1 : ranks / heads;
  Machine machine = Machine::here();
  machine.threads = 1;
  Problem problem = c.problem;
  if (problem.stats != StatsLevel::kNone) problem.stats = StatsLevel::kFull, problem.stats_options.causes = false;
  return static_cast<std::int64_t>(make_plan(problem, shape, pass, machine).workspace_bytes);
}

// What is predicted is what is allocated, tensor by tensor: no less than the peak that the library counts without the
// engine's workspace, and no more than with it. One thing a ring's backward cannot know: whether the next rank has
// taken the sum of the step before. It is counted always, and is at most 2 of 9 halves of dK and dV (bf16, whose K and
// V are half as large; gradients at home, of this step, coming and going): so no more than 9/7 of what is measured.
// The layout is zigzag, whose sums all end at the last step: where they end on the way (causal runs), it depends on who
// takes them how soon. Rows see few keys, so that long ones take no time; all keys travel nonetheless.
TEST(Cost, MemoryIsWhatIsAllocated) {
  constexpr std::int64_t kLength = 1024;
  for (const DType dtype : {DType::kF32, DType::kBF16})
    for (const std::int64_t heads_kv : {8, 2})
      for (const bool notes : {true, false})  // kept from forward to backward, without statistics; or the opposite
        for (const Way way : kWays)
          for (const int ranks : {2, 4, 8}) {
            constexpr int kNode = 2;
            if (way == Way::kTwoLevels && ranks == kNode) continue;
            auto c = std::make_unique<Case>();
            c->shape = {1, 8, heads_kv, kLength, kLength, 16, 32, dtype};
            c->problem.stats = notes ? StatsLevel::kNone : StatsLevel::kBasic;
            c->problem.mask.causal = heads_kv == 2;
            c->key_lengths = {64};
            c->q = Buffer(dtype, {1, 8, kLength, 16}), c->d_o = Buffer(dtype, {1, 8, kLength, 32});
            c->k = Buffer(dtype, {1, heads_kv, kLength, 16}), c->v = Buffer(dtype, {1, heads_kv, kLength, 32});
            c->link();
            const RankLayout layout = RankLayout::zigzag(kLength, ranks);
            const OverRanks over = run_on_threads(ranks, *c, {layout, layout, way, kNode, 1}, {.keep = notes});
            Cluster cluster;
            cluster.ranks_per_node = kNode;
            const Cost cost =
                cost_of(plan(c->problem.mask, c->shape, layout, layout, cluster, {true, !notes, false, notes}), way);
            SCOPED_TRACE(std::string(distributed::name_of(way)) + ", " + std::to_string(ranks) + " ranks, " +
                         name_of(dtype) + ", " + std::to_string(heads_kv) +
                         " key heads, notes: " + std::to_string(notes));
            // What forward kept is on the rank all along; backward's peak is of what it allocates itself.
            const std::int64_t travels = way == Way::kHeads ? ranks : way == Way::kTwoLevels ? kNode : 0;
            const std::int64_t own = kLength * travels / ranks,
                               kept = travels == 0 || !notes
                                          ? 0
                                          : own * (8 / travels * ((16 + 32) * size_of(dtype) + 4) +
                                                   std::max<std::int64_t>(1, heads_kv / travels) * 48 * size_of(dtype));
            const std::int64_t forward = peak(over.forward), backward = peak(over.backward) + kept;
            const std::int64_t spaces[] = {workspace(*c, way, ranks, kNode, Pass::kForward),
                                           workspace(*c, way, ranks, kNode, Pass::kBackward)};
            EXPECT_LE(forward - spaces[0], cost.forward.memory);
            EXPECT_LE(cost.forward.memory, forward);
            EXPECT_LE(backward - spaces[1], cost.backward.memory);
            const bool ring = way == Way::kRing || way == Way::kTwoLevels;
            EXPECT_LE(static_cast<double>(cost.backward.memory), (ring ? 9.0 / 7 : 1) * static_cast<double>(backward));
          }
}

// Memory is a rank's share of the tensors so many times, whatever the number of ranks: of what is allocated, all of it
// counted. Let S be this rank's q, k, v and o in f32 (here all of one size, and stored in half of that). Forward has at
// most
//   ring   k and v as messages, here, coming and on their way (3·S/4), widened (S/2); q widened, o and its part
//   (3·S/4): 2·S heads  q, k, v going and coming (3·S/4), in order (3·S/8), widened (3·S/4); o and its part, stored,
//   going and coming (S)
// and backward
//   ring   k and v (3·S/4, S/2); q, o and do widened, dq, and its part (5·S/4); dk and dv coming, going on, going home,
//   at
//          home and of this part, twice (3·S)
//   heads  q, k, v, o and do going, coming (5·S/4), in order (5·S/8), widened (5·S/4); dq, dk, dv twice, stored, going,
//          coming, at home (3·S)
// and a kernel's workspace. Rows see few keys, so that long ones take no time; all keys travel nonetheless.
TEST(Cost, MemoryFallsWithRanks) {
  constexpr std::int64_t kLength = 4096;
  auto c = std::make_unique<Case>();
  c->shape = {1, 8, 8, kLength, kLength, 16, 16, DType::kBF16};
  c->problem.stats = StatsLevel::kNone;
  c->key_lengths = {64};
  for (Buffer* buffer : {&c->q, &c->k, &c->v, &c->d_o}) *buffer = Buffer(DType::kBF16, {1, 8, kLength, 16});
  c->link();
  const auto space = [&](Way way, int ranks, Pass pass) {
    return static_cast<double>(workspace(*c, way, ranks, 1, pass));
  };
  for (const Way way : {Way::kRing, Way::kHeads})
    for (const int ranks : {2, 4, 8}) {
      const RankLayout layout = RankLayout::zigzag(kLength, ranks);
      const OverRanks over = run_on_threads(ranks, *c, {layout, layout, way, 1, 1});
      const double share = 4.0 * 8 * kLength * 4 * 16 / ranks, headers = 1 << 14;
      const auto forward = static_cast<double>(peak(over.forward)), backward = static_cast<double>(peak(over.backward));
      SCOPED_TRACE(std::string(distributed::name_of(way)) + ", " + std::to_string(ranks) + " ranks");
      EXPECT_LE(forward, (way == Way::kRing ? 2 : 2.875) * share + space(way, ranks, Pass::kForward) + headers);
      EXPECT_LE(backward, (way == Way::kRing ? 5.5 : 6.125) * share + space(way, ranks, Pass::kBackward) + headers);
      EXPECT_GE(forward, share);  // or it is not all counted
    }
}

// By hand: 4 ranks, 4,096 causal tokens, zigzag; 8 heads over 2, dims 64, bf16.
TEST(Cost, WorkedExample) {
  Mask mask;
  mask.causal = true;
  const Shape shape{1, 8, 2, 4096, 4096, 64, 64, DType::kBF16};
  const RankLayout layout = RankLayout::zigzag(4096, 4);
  const Choice choice = plan(mask, shape, layout, layout);
  const std::int64_t kv = 2 * 1024 * 128 * 2;  // a rank's K and V
  EXPECT_EQ(cost_of(choice, Way::kRing).forward.sent, std::vector<std::int64_t>(4, 3 * kv));
  EXPECT_EQ(cost_of(choice, Way::kRing).backward.sent, std::vector<std::int64_t>(4, 3 * kv + 4 * 2 * kv));
  EXPECT_EQ(cost_of(choice, Way::kAllGather).forward.sent, std::vector<std::int64_t>(4, 3 * kv));
  EXPECT_EQ(cost_of(choice, Way::kAllGather).backward.sent, std::vector<std::int64_t>(4, 3 * kv + 3 * 2 * kv));
  const std::int64_t to_one = 1024 * (2 * 64 + 1 * 128) * 2, back = 1024 * 2 * 64 * 2;
  EXPECT_EQ(cost_of(choice, Way::kHeads).forward.sent, std::vector<std::int64_t>(4, 3 * (to_one + back)));
  const double pairs = 4096.0 * 4097 / 2;
  double flops = 0;
  for (const double x : cost_of(choice, Way::kRing).forward.flops) flops += x;
  EXPECT_DOUBLE_EQ(flops, pairs * 2 * 128 * 8);
  for (const Cost& cost : choice.costs) EXPECT_LE(cost.efficiency, 1);
  EXPECT_NE(cost_of(choice, Way::kTwoLevels).refused, "");
}

// A ring over links that are fast enough takes no longer than its kernels; over slow ones as long as its messages.
TEST(Cost, TheRingHidesItsTransfer) {
  const Shape shape{1, 8, 8, 4096, 4096, 64, 64, DType::kBF16};
  const RankLayout layout = RankLayout::even(4096, 4);
  Cluster cluster;
  cluster.latency = 0, cluster.link = 1e18;
  EXPECT_NEAR(cost_of(plan({}, shape, layout, layout, cluster), Way::kRing).efficiency, 1, 1e-6);
  cluster.link = 1e6;
  const Cost slow = cost_of(plan({}, shape, layout, layout, cluster), Way::kRing);
  const double kv = 8.0 * 1024 * 128 * 2;
  EXPECT_NEAR(slow.forward.seconds, 3 * kv / 1e6, 1e-3 * slow.forward.seconds);
}

TEST(Cost, ChoosesWhatFits) {
  const Shape shape{1, 8, 8, 4096, 4096, 64, 64, DType::kBF16};
  const RankLayout layout = RankLayout::even(4096, 4);
  Cluster cluster;
  const Choice free = plan({}, shape, layout, layout, cluster);
  cluster.memory = static_cast<double>(cost_of(free, free.way).memory()) - 1;
  const Choice tight = plan({}, shape, layout, layout, cluster);
  EXPECT_NE(tight.way, free.way);
  EXPECT_EQ(tight.why, "fastest that fits");
  EXPECT_EQ(tight.costs[0].memory(), tight.costs[0].backward.memory) << "which takes more, and must fit as well";
  cluster.memory = 1;
  EXPECT_EQ(plan({}, shape, layout, layout, cluster).why, "none fits into the memory there is, and this takes least");
}

TEST(Cost, RefusesNonsense) {
  const Shape shape{1, 8, 8, 64, 64, 64, 64, DType::kBF16};
  const RankLayout layout = RankLayout::even(64, 4);
  Cluster cluster;
  cluster.link = 0;
  EXPECT_EQ(message_of([&] { plan({}, shape, layout, layout, cluster); }), "link: 0, but a positive number is wanted");
  EXPECT_EQ(message_of([&] { plan({}, shape, RankLayout::even(63, 4), layout); }),
            "layout: of 63 tokens, but len_q is 64");
  EXPECT_EQ(message_of([&] { plan({}, shape, RankLayout::even(64, 2), layout); }),
            "layout: 2 ranks hold queries, but 4 hold keys");
}

}  // namespace
}  // namespace rootdk::test
