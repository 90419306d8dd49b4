// Messages by MPI's nonblocking sends and receives on a communicator of our own; large ones in several, since MPI
// counts in int. Nothing here waits without looking at the clock and for ranks that have gone no further.
#include <fmt/format.h>
#include <mpi.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <thread>

#include "base/refuse.h"
#include "distributed/faults.h"
#include "rootdk/mpi.h"

namespace rootdk::distributed {

namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kLargest = std::size_t{1} << 30;  // bytes of one MPI message
constexpr int kFaultTag = static_cast<int>(Channel::kCount);
constexpr std::size_t kFaultBytes = 256;

void check(int status, const char* what) {
  if (status == MPI_SUCCESS) return;
  char text[MPI_MAX_ERROR_STRING];
  int length = 0;
  MPI_Error_string(status, text, &length);
  throw Error(ErrorCode::kRankFailed,
              fmt::format("{}: {}", what, std::string_view(text, static_cast<std::size_t>(length))));
}

/// For places that cannot throw.
template <class Run>
void quietly(const Run& run) noexcept {
  try {
    run();
  } catch (...) {
  }
}

bool is_finalised() {
  int finalised = 0;
  MPI_Finalized(&finalised);
  return finalised;
}

/// MPI itself. It can be begun once in a process: where we did, it ends with the process, whatever transports there
/// were.
class Session {
 public:
  static Session& get() {
    static Session session;
    return session;
  }
  ~Session() {
    if (ours_ && ends_well && !is_finalised()) quietly(MPI_Finalize);  // which waits for all: not for one that failed
  }
  bool ends_well = true;

 private:
  Session() {
    int initialised = 0;
    MPI_Initialized(&initialised);
    if (initialised) return;
    int provided = 0;
    check(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &provided), "MPI_Init_thread");
    ours_ = true;
  }
  bool ours_ = false;
};

class MpiTransport;

class MpiTransfer final : public Transfer {
 public:
  MpiTransfer(MpiTransport& transport, Channel channel, std::vector<Send> sends, std::vector<Receive> receives);
  ~MpiTransfer() override;
  bool poll() override { return done(); }
  void wait() override;

 private:
  bool done();
  int first_waited_for();
  template <class Post>
  void post(const Message& message, int rank, const Post& begin);

  MpiTransport& transport_;
  std::vector<MPI_Request> requests_;
  std::vector<int> peers_;  ///< of each request
  std::vector<Send> sends_;
  std::vector<Receive> receives_;
};

class MpiTransport final : public Transport {
 public:
  explicit MpiTransport(const MpiOptions& options) : timeout_(options.timeout) {
    const MPI_Comm from = options.communicator ? MPI_Comm_f2c(*options.communicator) : MPI_COMM_WORLD;
    check(MPI_Comm_dup(from, &communicator_), "MPI_Comm_dup");
    check(MPI_Comm_set_errhandler(communicator_, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
    check(MPI_Comm_rank(communicator_, &rank_), "MPI_Comm_rank");
    check(MPI_Comm_size(communicator_, &ranks_), "MPI_Comm_size");
  }
  ~MpiTransport() override {
    if (session_.ends_well && !is_finalised()) quietly([&] { MPI_Comm_free(&communicator_); });
  }
  int rank() const override { return rank_; }
  int ranks() const override { return ranks_; }

  void raise(std::string_view why) noexcept override {
    quietly([&] { tell(-1, why); });
  }

  /// To all others, once: the first word counts. What cannot be sent is not waited for.
  void tell(int waiting_for, std::string_view why) {
    if (has_told_) return;
    has_told_ = true;
    session_.ends_well = false;
    std::memcpy(told_, &waiting_for, sizeof waiting_for);
    const std::size_t length = std::min(why.size(), kFaultBytes - sizeof waiting_for - 1);
    std::memcpy(told_ + sizeof waiting_for, why.data(), length);
    told_[sizeof waiting_for + length] = 0;
    for (int rank = 0; rank < ranks_; ++rank) {
      MPI_Request request = MPI_REQUEST_NULL;
      if (rank != rank_ &&
          MPI_Isend(told_, kFaultBytes, MPI_BYTE, rank, kFaultTag, communicator_, &request) == MPI_SUCCESS)
        MPI_Request_free(&request);
    }
  }

  /// What others have said in the meantime.
  const FaultBoard& faults() {
    for (int there = 1; there;) {
      MPI_Status status;
      check(MPI_Iprobe(MPI_ANY_SOURCE, kFaultTag, communicator_, &there, &status), "MPI_Iprobe");
      if (!there) break;
      char told[kFaultBytes];
      check(MPI_Recv(told, kFaultBytes, MPI_BYTE, status.MPI_SOURCE, kFaultTag, communicator_, &status), "MPI_Recv");
      session_.ends_well = false;
      int waiting_for = -1;
      std::memcpy(&waiting_for, told, sizeof waiting_for);
      faults_.add(status.MPI_SOURCE, {waiting_for, told + sizeof waiting_for});
    }
    return faults_;
  }
  void suspect(int rank) {
    tell(rank, "");
    faults_.add(rank_, {rank, ""});
  }
  MPI_Comm communicator() const { return communicator_; }
  std::chrono::milliseconds timeout() const { return timeout_; }

  /// Messages that MPI may still read or write, though nobody waits for them any more: they stay until the process
  /// ends.
  void leave_behind(std::vector<Send> sends, std::vector<Receive> receives) {
    session_.ends_well = false;
    static auto* const left = new std::vector<Message>();
    for (Send& send : sends) left->push_back(std::move(send.message));
    for (Receive& receive : receives) left->push_back(std::move(receive.message));
  }

 protected:
  std::unique_ptr<Transfer> start(Channel channel, std::vector<Send> sends, std::vector<Receive> receives) override {
    return std::make_unique<MpiTransfer>(*this, channel, std::move(sends), std::move(receives));
  }

 private:
  Session& session_ = Session::get();
  MPI_Comm communicator_ = MPI_COMM_NULL;
  int rank_ = 0, ranks_ = 1;
  std::chrono::milliseconds timeout_;
  FaultBoard faults_;
  bool has_told_ = false;
  char told_[kFaultBytes] = {};
};

template <class Post>
void MpiTransfer::post(const Message& message, int rank, const Post& begin) {
  for (std::size_t at = 0; at < message->size(); at += kLargest) {
    const auto count = static_cast<int>(std::min(kLargest, message->size() - at));
    requests_.push_back(MPI_REQUEST_NULL), peers_.push_back(rank);
    begin(message->data() + at, count, &requests_.back());
  }
}

MpiTransfer::MpiTransfer(MpiTransport& transport, Channel channel, std::vector<Send> sends,
                         std::vector<Receive> receives)
    : transport_(transport), sends_(std::move(sends)), receives_(std::move(receives)) {
  const int tag = static_cast<int>(channel);
  for (const Receive& receive : receives_)
    post(receive.message, receive.from, [&](std::byte* data, int count, MPI_Request* request) {
      check(MPI_Irecv(data, count, MPI_BYTE, receive.from, tag, transport.communicator(), request), "MPI_Irecv");
    });
  for (const Send& send : sends_)
    post(send.message, send.to, [&](std::byte* data, int count, MPI_Request* request) {
      check(MPI_Isend(data, count, MPI_BYTE, send.to, tag, transport.communicator(), request), "MPI_Isend");
    });
}

MpiTransfer::~MpiTransfer() {
  const bool under_way =
      std::any_of(requests_.begin(), requests_.end(), [](MPI_Request request) { return request != MPI_REQUEST_NULL; });
  if (under_way) quietly([&] { transport_.leave_behind(std::move(sends_), std::move(receives_)); });
}

bool MpiTransfer::done() {
  int all = 0;
  check(MPI_Testall(static_cast<int>(requests_.size()), requests_.data(), &all, MPI_STATUSES_IGNORE), "MPI_Testall");
  return all;
}

int MpiTransfer::first_waited_for() {
  for (std::size_t i = 0; i < requests_.size(); ++i) {
    int one = 0;
    check(MPI_Test(&requests_[i], &one, MPI_STATUS_IGNORE), "MPI_Test");
    if (!one) return peers_[i];
  }
  return -1;
}

void MpiTransfer::wait() {
  auto until = Clock::now() + transport_.timeout();
  bool suspects = false;
  int suspect = -1;
  auto pause = std::chrono::microseconds(0);
  while (!done()) {
    const FaultBoard& faults = transport_.faults();
    faults.throw_if_raised();
    if (faults.any() && !suspects) until = Clock::now();
    if (Clock::now() >= until) {
      if (suspects) faults.throw_of(suspect, transport_.timeout());
      suspect = first_waited_for();
      if (suspect < 0) continue;
      suspects = true;
      until = Clock::now() + grace(transport_.timeout());
      transport_.suspect(suspect);
    }
    // At first as fast as messages come inside a machine, then leaving the core to others.
    if (pause.count() > 0) std::this_thread::sleep_for(pause);
    else std::this_thread::yield();
    pause = std::min(pause + std::chrono::microseconds(2), std::chrono::microseconds(500));
  }
}

}  // namespace

std::unique_ptr<Transport> mpi_transport(const MpiOptions& options) {
  if (options.timeout.count() <= 0) base::refuse("timeout: {} ms, but more than 0 is wanted", options.timeout.count());
  if (is_finalised()) base::refuse("mpi_transport: MPI_Finalize was called before");
  return std::make_unique<MpiTransport>(options);
}

}  // namespace rootdk::distributed
