// Ranks that are threads: a box for each pair of ranks and channel, one lock around all.
#include <fmt/format.h>

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <mutex>

#include "base/refuse.h"
#include "distributed/faults.h"
#include "rootdk/distributed/transport.h"

namespace rootdk::distributed {

namespace {

using Clock = std::chrono::steady_clock;

struct Hub {
  Hub(int count, std::chrono::milliseconds longest)
      : ranks(count),
        timeout(longest),
        boxes(static_cast<std::size_t>(count) * static_cast<std::size_t>(count) *
              static_cast<std::size_t>(Channel::kCount)) {}

  std::deque<Message>& box(int from, int to, Channel channel) {
    return boxes[(static_cast<std::size_t>(from) * static_cast<std::size_t>(ranks) + static_cast<std::size_t>(to)) *
                     static_cast<std::size_t>(Channel::kCount) +
                 static_cast<std::size_t>(channel)];
  }

  const int ranks;
  const std::chrono::milliseconds timeout;
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<std::deque<Message>> boxes;
  FaultBoard faults;  ///< one for all: everybody hears at once
};

class InProcessTransfer final : public Transfer {
 public:
  InProcessTransfer(Hub& hub, int rank, Channel channel, std::vector<Receive> receives)
      : hub_(hub), rank_(rank), channel_(channel), waiting_(std::move(receives)) {}

  void poll() override {
    const std::lock_guard lock(hub_.mutex);
    take();
  }

  void wait() override {
    std::unique_lock lock(hub_.mutex);
    auto until = Clock::now() + hub_.timeout;
    bool suspects = false;
    for (take(); !waiting_.empty(); take()) {
      const int from = waiting_.front().from;
      hub_.faults.throw_if_raised();
      if (hub_.faults.any() && !suspects) until = Clock::now();
      if (hub_.changed.wait_until(lock, until) == std::cv_status::no_timeout || Clock::now() < until) continue;
      if (suspects) hub_.faults.throw_of(from, hub_.timeout);
      suspects = true;
      until = Clock::now() + grace(hub_.timeout);
      hub_.faults.add(rank_, {from, ""});
      hub_.changed.notify_all();
    }
  }

 private:
  // In order: of two receives from the same rank the first gets what was sent first.
  void take() {
    std::vector<Receive> still;
    for (Receive& receive : waiting_) {
      std::deque<Message>& box = hub_.box(receive.from, rank_, channel_);
      const bool behind = std::any_of(still.begin(), still.end(), [&](const Receive& r) { return r.from == receive.from; });
      if (box.empty() || behind) {
        still.push_back(std::move(receive));
        continue;
      }
      if (box.front()->size() != receive.message->size())
        throw RankError(ErrorCode::kInternal, receive.from,
                        fmt::format("rank {}: sent {} bytes, but {} were expected", receive.from, box.front()->size(),
                                    receive.message->size()));
      *receive.message = *box.front();
      box.pop_front();
    }
    waiting_ = std::move(still);
  }

  Hub& hub_;
  const int rank_;
  const Channel channel_;
  std::vector<Receive> waiting_;
};

class InProcessTransport final : public Transport {
 public:
  InProcessTransport(std::shared_ptr<Hub> hub, int rank) : hub_(std::move(hub)), rank_(rank) {}
  int rank() const override { return rank_; }
  int ranks() const override { return hub_->ranks; }

  void raise(std::string_view why) noexcept override {
    {
      const std::lock_guard lock(hub_->mutex);
      hub_->faults.add(rank_, {-1, std::string(why)});
    }
    hub_->changed.notify_all();
  }

 protected:
  std::unique_ptr<Transfer> start(Channel channel, std::vector<Send> sends, std::vector<Receive> receives) override {
    {
      const std::lock_guard lock(hub_->mutex);
      for (Send& send : sends) hub_->box(rank_, send.to, channel).push_back(std::move(send.message));
    }
    hub_->changed.notify_all();
    return std::make_unique<InProcessTransfer>(*hub_, rank_, channel, std::move(receives));
  }

 private:
  std::shared_ptr<Hub> hub_;
  const int rank_;
};

}  // namespace

std::vector<std::unique_ptr<Transport>> in_process_transports(int ranks, std::chrono::milliseconds timeout) {
  if (ranks < 1) base::refuse("ranks: {}, but at least 1 is wanted", ranks);
  const auto hub = std::make_shared<Hub>(ranks, timeout);
  std::vector<std::unique_ptr<Transport>> out;
  for (int rank = 0; rank < ranks; ++rank) out.push_back(std::make_unique<InProcessTransport>(hub, rank));
  return out;
}

}  // namespace rootdk::distributed
