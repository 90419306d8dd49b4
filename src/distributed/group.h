// Some ranks of a transport, numbered among themselves, and how each tells all others something.
#pragma once

#include <vector>

#include "distributed/memory.h"
#include "rootdk/distributed/transport.h"

namespace rootdk::distributed {

struct Group {
  Transport* transport = nullptr;
  std::vector<int> members = {};  ///< ranks of the transport
  int me = 0;                     ///< my place among them

  int size() const { return static_cast<int>(members.size()); }
  int after(int steps) const { return ((me + steps) % size() + size()) % size(); }

  /// As Transport::begin; ranks are places in the group, and empty messages stay at home.
  std::unique_ptr<Transfer> begin(Channel channel, std::vector<Send> sends, std::vector<Receive> receives) const {
    std::erase_if(sends, [](const Send& send) { return send.message->empty(); });
    std::erase_if(receives, [](const Receive& receive) { return receive.message->empty(); });
    for (Send& send : sends) send.to = members[static_cast<std::size_t>(send.to)];
    for (Receive& receive : receives) receive.from = members[static_cast<std::size_t>(receive.from)];
    return transport->begin(channel, std::move(sends), std::move(receives));
  }

  /// Begins sending to every other member and receiving from it; a null message is neither.
  std::unique_ptr<Transfer> exchange(Channel channel, const std::vector<Message>& to,
                                     const std::vector<Message>& from) const {
    std::vector<Send> sends;
    std::vector<Receive> receives;
    for (int step = 1; step < size(); ++step) {  // so that not all begin with the same one
      const int target = after(step), source = after(-step);
      if (const Message& message = to[static_cast<std::size_t>(target)]) sends.push_back({target, message});
      if (const Message& message = from[static_cast<std::size_t>(source)]) receives.push_back({source, message});
    }
    return begin(channel, std::move(sends), std::move(receives));
  }

  /// Everybody's, in order of the members; mine is among them. `bytes` says how large each is.
  std::vector<Message> all(Channel channel, const Message& mine, const std::vector<std::int64_t>& bytes,
                           const SharedMeter& meter) const {
    std::vector<Message> to(members.size(), mine), from;
    for (int i = 0; i < size(); ++i)
      from.push_back(i == me ? mine : make_message(meter, bytes[static_cast<std::size_t>(i)]));
    exchange(channel, to, from)->wait();
    return from;
  }
};

}  // namespace rootdk::distributed
