// What goes wrong on one rank is said on all, with its number: before rows move, or within the stated time.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <mutex>
#include <utility>

#include "distributed/over_ranks.h"

namespace rootdk::test {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

struct Heard {
  std::string message;
  int rank = -1;
  ErrorCode code = ErrorCode::kInternal;
  std::chrono::duration<double> after{};
};

/// What each rank throws; empty messages where it does not.
template <class Run>
std::vector<Heard> heard(int ranks, std::chrono::milliseconds timeout, const Run& run) {
  const auto transports = distributed::in_process_transports(ranks, timeout);
  std::vector<Heard> out(transports.size());
  const auto start = Clock::now();
  std::vector<std::jthread> threads;
  for (std::size_t rank = 0; rank < transports.size(); ++rank)
    threads.emplace_back([&, rank] {
      try {
        run(*transports[rank]);
      } catch (const distributed::RankError& error) {
        out[rank] = {error.what(), error.rank(), error.code(), Clock::now() - start};
      } catch (const std::exception& error) {
        out[rank].message = error.what();
      }
    });
  threads.clear();
  return out;
}

std::unique_ptr<Case> small_case() {
  auto c = std::make_unique<Case>();
  c->shape = {1, 2, 1, 24, 24, 8, 8, DType::kF32};
  Rng rng(5);
  for (Buffer* buffer : {&c->q, &c->d_o}) *buffer = Buffer(DType::kF32, {1, 2, 24, 8});
  for (Buffer* buffer : {&c->k, &c->v}) *buffer = Buffer(DType::kF32, {1, 1, 24, 8});
  for (Buffer* buffer : {&c->q, &c->k, &c->v, &c->d_o}) buffer->fill_normal(rng, 1);
  c->problem.mask.causal = true;
  c->link();
  return c;
}

Share share_of(const Case& c, int ranks, Way way) {
  return {RankLayout::even(c.shape.len_q, ranks), RankLayout::even(c.shape.len_kv, ranks), way, 2, 1};
}

// `change` alters what rank 2 is called with; no output may have been written anywhere, and no row sent.
template <class Change>
std::vector<Heard> with_rank_2(const Change& change) {
  const auto c = small_case();
  std::mutex mutex;
  std::int64_t sent = 0;
  const auto out = heard(4, 1min, [&](Transport& transport) {
    Share share = share_of(*c, 4, Way::kRing);
    RankCase mine(*c, share, transport.rank());
    mine.o.fill(77);
    Inputs inputs = mine.inputs();
    if (transport.rank() == 2) change(mine, share, inputs);
    try {
      distributed::forward(transport, mine.problem, share, inputs, mine.outputs);
    } catch (...) {
      const std::lock_guard lock(mutex);
      sent += transport.sent(distributed::Channel::kData).bytes;
      for (const double x : mine.o.values()) EXPECT_EQ(x, 77);
      throw;
    }
  });
  EXPECT_EQ(sent, 0);
  return out;
}

void expect_all(const std::vector<Heard>& all, int rank, const std::string& message) {
  for (const Heard& one : all) {
    EXPECT_EQ(one.message, message);
    EXPECT_EQ(one.rank, rank);
    EXPECT_EQ(one.code, ErrorCode::kInvalidArgument);
  }
}

TEST(Faults, AWrongShapeOnOneRankIsToldOnAllBeforeRowsMove) {
  expect_all(with_rank_2([](RankCase&, Share&, Inputs& in) { in.q.shape[3] = in.k.shape[3] = 4; }), 2,
             "rank 2: dim_qk is 4, but 8 on 3 of 4 ranks");
  expect_all(with_rank_2([](RankCase&, Share&, Inputs& in) { in.k.shape[3] = 4; }), 2,
             "rank 2: k: dim_qk is 4, but q has 8");
  expect_all(with_rank_2([](RankCase&, Share&, Inputs& in) { in.q.shape[2] = 5; }), 2,
             "rank 2: q: 5 rows, but the layout gives this rank 6");
  expect_all(with_rank_2([](RankCase& mine, Share&, Inputs&) { mine.outputs.o.shape[3] = 4; }), 2,
             "rank 2: o: axis 3 is 4, but 8 is wanted");
  expect_all(with_rank_2([](RankCase& mine, Share&, Inputs&) { mine.problem.dropout.p = 0.5; }), 2,
             "rank 2: dropout: 0.5, but attention over ranks has none");
  expect_all(with_rank_2([](RankCase&, Share& share, Inputs&) { share.way = Way::kHeads; }), 2,
             "rank 2: the way is heads, but ring on 3 of 4 ranks");
}

TEST(Faults, AnotherProblemOnOneRankIsToldOnAll) {
  expect_all(with_rank_2([](RankCase& mine, Share&, Inputs&) { mine.problem.mask.causal = false; }), 2,
             "rank 2: the mask is not the same as on 3 of 4 ranks");
  expect_all(with_rank_2([](RankCase& mine, Share&, Inputs&) { mine.problem.scale = Scale::constant(2); }), 2,
             "rank 2: the scale is not the same as on 3 of 4 ranks");
  expect_all(with_rank_2([](RankCase& mine, Share&, Inputs&) { mine.problem.soft_cap = 3.0f; }), 2,
             "rank 2: soft-cap, transform or sink is not the same as on 3 of 4 ranks");
  expect_all(with_rank_2([](RankCase&, Share& share, Inputs&) {
               share.keys = RankLayout{{{{6, 12}}, {{0, 6}}, {{12, 18}}, {{18, 24}}}};
             }),
             2, "rank 2: the layout is not the same as on 3 of 4 ranks");
}

/// From a message on of which `when` is true nothing more comes from this rank.
class Stalls final : public Transport {
 public:
  Stalls(Transport& inner, std::function<bool(distributed::Channel)> when) : inner_(inner), when_(std::move(when)) {}
  int rank() const override { return inner_.rank(); }
  int ranks() const override { return inner_.ranks(); }
  void raise(std::string_view) noexcept override {}

 protected:
  std::unique_ptr<distributed::Transfer> start(distributed::Channel channel, std::vector<distributed::Send> sends,
                                               std::vector<distributed::Receive> receives) override {
    if (when_(channel)) throw std::runtime_error("stalls");
    return inner_.begin(channel, std::move(sends), std::move(receives));
  }

 private:
  Transport& inner_;
  std::function<bool(distributed::Channel)> when_;
};

// Rank 1 goes no further: all others name it, though most of them wait for somebody who waits for somebody.
TEST(Faults, AStalledRankIsNamedByAllInTime) {
  const auto c = small_case();
  for (const Way way : kWays)
    for (const bool at_once : {true, false}) {
      const auto all = heard(4, 400ms, [&](Transport& transport) {
        const Share share = share_of(*c, 4, way);
        RankCase mine(*c, share, transport.rank());
        if (transport.rank() == 1 && at_once) return;
        // Later: it has agreed, and then nothing more comes from it.
        Stalls stalls(transport,
                      [](distributed::Channel channel) { return channel != distributed::Channel::kControl; });
        Transport& used = transport.rank() == 1 ? static_cast<Transport&>(stalls) : transport;
        distributed::forward(used, mine.problem, share, mine.inputs(), mine.outputs);
      });
      for (std::size_t rank = 0; rank < all.size(); ++rank) {
        if (rank == 1) continue;
        SCOPED_TRACE(std::string(distributed::name_of(way)) + ", rank " + std::to_string(rank));
        EXPECT_EQ(all[rank].message, "rank 1: nothing came from it for 400 ms");
        EXPECT_EQ(all[rank].rank, 1);
        EXPECT_LT(all[rank].after.count(), 4);  // 0.4 s, 0.2 s of listening, and a machine that does other things
      }
    }
}

// All rows have moved, and what is missing is one rank's word on statistics or on the sums over heads.
TEST(Faults, WhatIsLostAtTheVeryEndLeavesNothingHalfWritten) {
  const auto c = small_case();
  c->problem.stats = StatsLevel::kBasic;
  const std::vector<float> sink(2, 0.5f);
  c->problem.sink = sink;
  for (const Way way : kWays)
    for (const bool backward : {false, true}) {
      SCOPED_TRACE(std::string(distributed::name_of(way)) + (backward ? ", backward" : ", forward"));
      const auto all = heard(4, 400ms, [&](Transport& transport) {
        const Share share = share_of(*c, 4, way);
        RankCase mine(*c, share, transport.rank());
        if (backward) distributed::forward(transport, mine.problem, share, mine.inputs(), mine.outputs);
        std::vector<Buffer*> written = {&mine.d_q, &mine.d_k, &mine.d_v};
        if (!backward) {
          written = {&mine.o, &mine.lse};
          for (Buffer& row : mine.rows) written.push_back(&row);
        }
        for (Buffer* const buffer : written) buffer->fill(77);
        std::fill(mine.d_sink.begin(), mine.d_sink.end(), 77.0f);
        bool moved = false;
        Stalls stalls(transport, [&](distributed::Channel channel) {
          moved |= channel != distributed::Channel::kControl;
          return moved && channel == distributed::Channel::kControl;
        });
        Transport& used = transport.rank() == 1 ? static_cast<Transport&>(stalls) : transport;
        try {
          if (backward) distributed::backward(used, mine.problem, share, mine.backward_inputs(), mine.gradients());
          else distributed::forward(used, mine.problem, share, mine.inputs(), mine.outputs);
        } catch (...) {
          for (const Buffer* const buffer : written)
            for (const double x : buffer->values()) EXPECT_EQ(x, 77);
          for (const float x : mine.d_sink) EXPECT_EQ(x, 77);
          throw;
        }
      });
      for (std::size_t rank = 0; rank < all.size(); ++rank)
        EXPECT_EQ(all[rank].message, rank == 1 ? "stalls" : "rank 1: nothing came from it for 400 ms");
    }
}

TEST(Faults, WhatARankRaisesTheOthersHearAtOnce) {
  const auto c = small_case();
  const auto all = heard(3, 1min, [&](Transport& transport) {
    const Share share = share_of(*c, 3, Way::kRing);
    RankCase mine(*c, share, transport.rank());
    if (transport.rank() == 2) return transport.raise("out of memory");
    distributed::forward(transport, mine.problem, share, mine.inputs(), mine.outputs);
  });
  for (const std::size_t rank : {0, 1}) {
    EXPECT_EQ(all[rank].message, "rank 2: out of memory");
    EXPECT_LT(all[rank].after.count(), 10);
  }
}

TEST(Faults, AMessageOfAnotherSizeIsRefused) {
  const auto message = [](std::size_t bytes) { return std::make_shared<std::vector<std::byte>>(bytes); };
  const auto all = heard(2, 10s, [&](Transport& transport) {
    using distributed::Channel;
    if (transport.rank() == 0) transport.begin(Channel::kData, {{1, message(3)}}, {})->wait();
    else transport.begin(Channel::kData, {}, {{0, message(4)}})->wait();
  });
  EXPECT_EQ(all[1].message, "rank 0: sent 3 bytes, but 4 were expected");
}

}  // namespace
}  // namespace rootdk::test
