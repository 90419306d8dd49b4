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

/// A message in its box, and a mark that its sender waits for, as it does for a message that is too large to be
/// buffered.
struct Posted {
  Message message;
  std::shared_ptr<bool> taken;
};

struct Hub {
  Hub(int count, std::chrono::milliseconds longest)
      : ranks(count),
        timeout(longest),
        boxes(static_cast<std::size_t>(count) * static_cast<std::size_t>(count) *
              static_cast<std::size_t>(Channel::kCount)) {}

  std::deque<Posted>& box(int from, int to, Channel channel) {
    return boxes[(static_cast<std::size_t>(from) * static_cast<std::size_t>(ranks) + static_cast<std::size_t>(to)) *
                     static_cast<std::size_t>(Channel::kCount) +
                 static_cast<std::size_t>(channel)];
  }

  const int ranks;
  const std::chrono::milliseconds timeout;
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<std::deque<Posted>> boxes;
  FaultBoard faults;  ///< one for all: everybody hears at once
};

class InProcessTransfer final : public Transfer {
 public:
  InProcessTransfer(Hub& hub, int rank, Channel channel, std::vector<std::pair<int, std::shared_ptr<bool>>> sent,
                    std::vector<Receive> receives)
      : hub_(hub), rank_(rank), channel_(channel), sent_(std::move(sent)), waiting_(std::move(receives)) {}

  bool poll() override {
    const std::lock_guard lock(hub_.mutex);
    return take() < 0;
  }

  void wait() override {
    std::unique_lock lock(hub_.mutex);
    auto until = Clock::now() + hub_.timeout;
    bool suspects = false;
    for (int from = take(); from >= 0; from = take()) {
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
  // Returns a rank that is waited for, or −1. In order: of two receives from the same rank the first gets what was sent
  // first.
  int take() {
    std::vector<Receive> still;
    for (Receive& receive : waiting_) {
      std::deque<Posted>& box = hub_.box(receive.from, rank_, channel_);
      const auto same = [&](const Receive& other) { return other.from == receive.from; };
      if (box.empty() || std::any_of(still.begin(), still.end(), same)) {
        still.push_back(std::move(receive));
        continue;
      }
      if (box.front().message->size() != receive.message->size()) {
        const std::string why =
            fmt::format("sent {} bytes, but {} were expected", box.front().message->size(), receive.message->size());
        hub_.faults.add(receive.from, {-1, why});
        hub_.changed.notify_all();
        throw RankError(ErrorCode::kInternal, receive.from, fmt::format("rank {}: {}", receive.from, why));
      }
      *receive.message = *box.front().message;
      *box.front().taken = true;
      box.pop_front();
      hub_.changed.notify_all();
    }
    waiting_ = std::move(still);
    std::erase_if(sent_, [](const auto& one) { return *one.second; });
    return !waiting_.empty() ? waiting_.front().from : !sent_.empty() ? sent_.front().first : -1;
  }

  Hub& hub_;
  const int rank_;
  const Channel channel_;
  std::vector<std::pair<int, std::shared_ptr<bool>>> sent_;  ///< to whom, and whether it was taken
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
    std::vector<std::pair<int, std::shared_ptr<bool>>> sent;
    {
      const std::lock_guard lock(hub_->mutex);
      for (Send& send : sends) {
        sent.emplace_back(send.to, std::make_shared<bool>(false));
        hub_->box(rank_, send.to, channel).push_back({std::move(send.message), sent.back().second});
      }
    }
    hub_->changed.notify_all();
    return std::make_unique<InProcessTransfer>(*hub_, rank_, channel, std::move(sent), std::move(receives));
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
