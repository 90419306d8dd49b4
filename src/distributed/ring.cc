// K and V go round, each as far as somebody needs them: while the kernel runs on those that are here the next come in.
// dK and dV follow, each rank adding its part, and go home from where they end.
#include <algorithm>

#include "distributed/needs.h"
#include "distributed/rows.h"
#include "distributed/ways.h"

namespace rootdk::distributed {

KvMessage::KvMessage(const Whole& whole, DType dtype, std::int64_t length) {
  const Shape& s = whole.shape;
  const Extents k_shape = {s.batch, s.heads_kv, length, s.dim_qk}, v_shape = {s.batch, s.heads_kv, length, s.dim_v};
  message = make_message(whole.meter, bytes_of(dtype, k_shape) + bytes_of(dtype, v_shape));
  k = {message->data(), dtype, Device::kCpu, k_shape, row_major(k_shape)};
  v = {message->data() + bytes_of(dtype, k_shape), dtype, Device::kCpu, v_shape, row_major(v_shape)};
}

namespace {

KvMessage packed(const Whole& whole, const ConstTensor& k, const ConstTensor& v) {
  KvMessage out(whole, whole.shape.dtype, k.shape[kLength]);
  copy(k, out.k), copy(v, out.v);
  return out;
}

/// What is here at each step, and what goes on.
class Round {
 public:
  Round(const Ranks& ranks, const Whole& whole, const ConstTensor& k, const ConstTensor& v)
      : group_(ranks.group), keys_(ranks.keys), whole_(whole), here_(packed(whole, k, v)) {
    const Needs needs{whole.problem.mask, whole.shape, ranks.queries, ranks.keys};
    for (int rank = 0; rank < group_.size(); ++rank) {
      hops_.push_back(needs.hops(rank));
      steps_ = std::max(steps_, hops_.back() + 1);
    }
  }

  int steps() const { return steps_; }
  int source(int step) const { return group_.after(-step); }  ///< whose they are
  const Pieces& pieces(int step) const { return keys_.pieces[static_cast<std::size_t>(source(step))]; }
  const KvMessage& here() const { return here_; }
  bool arrives(int step) const { return hops(source(step)) >= step; }
  bool goes_on(int step) const { return hops(source(step)) > step; }
  int hops(int rank) const { return hops_[static_cast<std::size_t>(rank)]; }
  KvMessage gradients(int step) const { return {whole_, whole_.work(), keys_.length(source(step))}; }

  void begin(int step) {
    std::vector<Send> sends;
    std::vector<Receive> receives;
    if (goes_on(step)) sends.push_back({group_.after(1), here_.message});
    if (step + 1 < steps_ && arrives(step + 1)) {
      next_ = KvMessage(whole_, whole_.shape.dtype, keys_.length(source(step + 1)));
      receives.push_back({group_.after(-1), next_.message});
    }
    transfer_ = group_.begin(Channel::kData, std::move(sends), std::move(receives));
  }
  void poll() const { transfer_->poll(); }
  void end() {
    transfer_->wait();
    here_ = std::move(next_);
    next_ = {};
  }

 private:
  const Group& group_;
  const Layout& keys_;
  const Whole& whole_;
  std::vector<int> hops_;
  int steps_ = 0;
  KvMessage here_, next_;
  std::unique_ptr<Transfer> transfer_;
};

}  // namespace

void ring_forward(const Ranks& ranks, const Whole& whole, const ConstTensor& k, const ConstTensor& v,
                  ForwardParts& parts) {
  if (ranks.group.size() == 1) return parts.add(ranks.keys.pieces[0], k, v);
  Round round(ranks, whole, k, v);
  for (int step = 0; step < round.steps(); ++step) {
    round.begin(step);
    if (round.arrives(step)) parts.add(round.pieces(step), round.here().k, round.here().v, [&] { round.poll(); });
    round.end();
  }
}

KvMessage ring_backward(const Ranks& ranks, const Whole& whole, const ConstTensor& k, const ConstTensor& v,
                        BackwardParts& parts) {
  const Group& group = ranks.group;
  Round round(ranks, whole, k, v);
  KvMessage home = round.gradients(0);
  const bool comes_home = round.hops(group.me) > 0;
  std::unique_ptr<Transfer> sending, homing;
  std::vector<std::unique_ptr<Transfer>> returning;  // several may end here; who gets them may still be on its way
  if (comes_home) homing = group.begin(Channel::kReturn, {}, {{group.after(round.hops(group.me)), home.message}});
  const auto poll = [&] {
    round.poll();
    if (homing) homing->poll();
    std::erase_if(returning, [](const auto& transfer) { return transfer->poll(); });
  };
  for (int step = 0; step < round.steps(); ++step) {
    round.begin(step);
    if (round.arrives(step)) {
      const KvMessage sum = round.gradients(step), so_far = step > 0 ? round.gradients(step) : KvMessage();
      std::unique_ptr<Transfer> coming;
      if (step > 0) coming = group.begin(Channel::kGradients, {}, {{group.after(-1), so_far.message}});
      parts.add(round.pieces(step), round.here().k, round.here().v, sum.k, sum.v, poll);
      if (coming) {
        coming->wait();
        add(so_far.k, sum.k), add(so_far.v, sum.v);
      }
      if (round.goes_on(step)) {
        if (sending) sending->wait();
        sending = group.begin(Channel::kGradients, {{group.after(1), sum.message}}, {});
      } else if (step > 0) {
        returning.push_back(group.begin(Channel::kReturn, {{round.source(step), sum.message}}, {}));
      } else {
        home = sum;
      }
    }
    poll();
    round.end();
  }
  if (homing) homing->wait();
  if (sending) sending->wait();
  for (const auto& transfer : returning) transfer->wait();
  return home;
}

}  // namespace rootdk::distributed
