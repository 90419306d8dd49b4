// What every transport shares: counting.
#include "rootdk/distributed/transport.h"

namespace rootdk::distributed {

std::unique_ptr<Transfer> Transport::begin(Channel channel, std::vector<Send> sends, std::vector<Receive> receives) {
  Traffic& traffic = sent_[static_cast<std::size_t>(channel)];
  for (const Send& send : sends) traffic.bytes += static_cast<std::int64_t>(send.message->size());
  traffic.messages += static_cast<std::int64_t>(sends.size());
  return start(channel, std::move(sends), std::move(receives));
}

}  // namespace rootdk::distributed
