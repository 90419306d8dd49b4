// How ranks reach each other: messages from one to another, begun now and waited for later, never for longer than
// stated.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "rootdk/error.h"
#include "rootdk/export.h"

namespace rootdk::distributed {

/// Another rank died, stalled or raised; or it disagrees. The message begins with its number.
class ROOTDK_API RankError : public Error {
 public:
  RankError(ErrorCode code, int rank, const std::string& message) : Error(code, message), rank_(rank) {}
  int rank() const noexcept { return rank_; }

 private:
  int rank_;
};

/// Shared, since it must stay while it travels. Once sent it is never written again.
using Message = std::shared_ptr<std::vector<std::byte>>;

struct Send {
  int to;
  Message message;
};

/// The message has the size of what is to come.
struct Receive {
  int from;
  Message message;
};

/// Messages between two ranks keep their order within a channel.
enum class Channel : std::uint8_t {
  kControl,    ///< what ranks agree on, statistics, sums of one number per head
  kData,       ///< rows of Q, K, V, O and their gradients
  kGradients,  ///< dK and dV that travel behind K and V …
  kReturn,     ///< … and go home
  kCount
};

struct Traffic {
  std::int64_t bytes = 0, messages = 0;  ///< sent by this rank
};

/// Of one rank with others, under way.
class ROOTDK_API Transfer {
 public:
  virtual ~Transfer() = default;
  /// Lets it go on, where a transport needs to be called for that, and says whether all has come and gone. At once.
  virtual bool poll() = 0;
  /// Until it has. A message that was sent has gone when it was taken there. Throws RankError after the transport's
  /// timeout, or when a rank has raised.
  virtual void wait() = 0;
};

/// One rank's end. Used by one thread at a time.
class ROOTDK_API Transport {
 public:
  virtual ~Transport() = default;
  virtual int rank() const = 0;
  virtual int ranks() const = 0;

  /// Counts, and begins.
  std::unique_ptr<Transfer> begin(Channel channel, std::vector<Send> sends, std::vector<Receive> receives);

  /// Tells every other rank why this one goes no further: their waits throw. Harmless where nobody listens.
  virtual void raise(std::string_view why) noexcept = 0;

  const Traffic& sent(Channel channel) const { return sent_[static_cast<std::size_t>(channel)]; }

 protected:
  virtual std::unique_ptr<Transfer> start(Channel channel, std::vector<Send> sends, std::vector<Receive> receives) = 0;

 private:
  std::array<Traffic, static_cast<std::size_t>(Channel::kCount)> sent_ = {};
};

/// Ranks that are threads of this process: for tests, and to try things out. Each end belongs to one thread.
ROOTDK_API std::vector<std::unique_ptr<Transport>> in_process_transports(
    int ranks, std::chrono::milliseconds timeout = std::chrono::minutes(5));

}  // namespace rootdk::distributed
