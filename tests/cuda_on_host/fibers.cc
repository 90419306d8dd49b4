// A stack per CUDA thread, switched by longjmp; barriers and shuffles are where fibers wait for each other.
#include "cuda_on_host/fibers.h"

#include <csetjmp>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <ucontext.h>
#include <vector>

namespace rootdk::test::fibers {

namespace {

constexpr std::size_t kStack = std::size_t{128} << 10, kMostThreads = 1024, kAligned = 1024;

enum class State { kReady, kAtWarp, kAtBlock, kDone };

struct Fiber {
  State state = State::kDone;
  bool started = false, vote = true;
  unsigned meetings = 0;  ///< with its warp
  jmp_buf place;
};

/// One thread of the host.
struct Runner {
  std::unique_ptr<std::byte[]> stacks{new std::byte[kStack * kMostThreads]};
  std::vector<Fiber> fibers{kMostThreads};
  std::vector<std::byte> shared;
  std::byte brought[2][kMostThreads][kMostBytes];  // a lane may be a meeting ahead of another one
  jmp_buf scheduler;
  Fiber* now = nullptr;
  bool all = true;  ///< of the last vote
  const std::function<void()>* kernel = nullptr;
};

Runner& runner() {
  static thread_local Runner mine;
  return mine;
}

[[noreturn]] void give_up(const char* why) {
  std::fprintf(stderr, "a kernel on the host: %s (block %u, thread %u)\n", why, blockIdx.x, threadIdx.x);
  std::abort();
}

// longjmp between stacks: what ucontext began it need not switch, which would be two system calls each time.
void leave(State state) {
  Runner& r = runner();
  r.now->state = state;
  if (_setjmp(r.now->place) == 0) _longjmp(r.scheduler, 1);
}

/// A fiber stays for the next block: making one takes system calls.
[[noreturn]] void begin() {
  for (;;) {
    (*runner().kernel)();
    leave(State::kDone);
  }
}

void resume(unsigned thread) {
  Runner& r = runner();
  r.now = &r.fibers[thread];
  threadIdx.x = thread;
  if (_setjmp(r.scheduler) != 0) return;
  if (r.now->started) _longjmp(r.now->place, 1);
  r.now->started = true;
  ucontext_t context;
  getcontext(&context);
  context.uc_stack.ss_sp = r.stacks.get() + thread * kStack;
  context.uc_stack.ss_size = kStack;
  context.uc_link = nullptr;
  makecontext(&context, &begin, 0);
  setcontext(&context);
}

/// Until all of its lanes are at the block's barrier or have ended.
void run_warp(unsigned first, unsigned last) {
  Runner& r = runner();
  for (;;) {
    for (unsigned t = first; t < last; ++t)
      if (r.fibers[t].state == State::kReady) resume(t);
    unsigned waiting = 0, done = 0;
    for (unsigned t = first; t < last; ++t)
      waiting += r.fibers[t].state == State::kAtWarp, done += r.fibers[t].state == State::kDone;
    if (waiting == 0) return;
    if (waiting + done != last - first) give_up("some lanes of a warp wait for each other, others at a barrier");
    for (unsigned t = first; t < last; ++t)
      if (r.fibers[t].state == State::kAtWarp) r.fibers[t].state = State::kReady;
  }
}

void run_block(unsigned threads) {
  Runner& r = runner();
  for (auto& turn : r.brought) std::memset(turn, 0, threads * sizeof turn[0]);
  for (unsigned t = 0; t < threads; ++t) r.fibers[t].state = State::kReady, r.fibers[t].meetings = 0;
  for (;;) {
    for (unsigned first = 0; first < threads; first += kLanes)
      run_warp(first, first + kLanes < threads ? first + kLanes : threads);
    unsigned done = 0;
    r.all = true;
    for (unsigned t = 0; t < threads; ++t) {
      if (r.fibers[t].state == State::kDone) ++done;
      else r.all = r.all && r.fibers[t].vote, r.fibers[t].state = State::kReady;
    }
    if (done == threads) return;
    if (done > 0) give_up("some threads have ended, others are at a barrier");
  }
}

}  // namespace

void launch(dim3 blocks, unsigned threads, std::size_t shared, const std::function<void()>& kernel) {
  Runner& r = runner();
  if (threads == 0 || threads > kMostThreads) give_up("so many threads are not allowed");
  r.shared.assign(shared + kAligned, std::byte{0xFF});  // NaN in f32: nobody has written it
  r.kernel = &kernel;
  blockDim = dim3(threads), gridDim = blocks;
  for (unsigned y = 0; y < blocks.y; ++y)
    for (unsigned x = 0; x < blocks.x; ++x) {
      blockIdx = dim3(x, y);
      run_block(threads);
    }
}

void* dynamic_shared() {
  std::byte* memory = runner().shared.data();
  return memory + (kAligned - reinterpret_cast<std::size_t>(memory) % kAligned) % kAligned;
}

bool meet_block(bool vote) {
  runner().now->vote = vote;
  leave(State::kAtBlock);
  return runner().all;
}

const std::byte (*meet_warp(const void* mine, std::size_t size))[kMostBytes] {
  Runner& r = runner();
  const unsigned turn = r.now->meetings++ % 2, thread = threadIdx.x;
  std::memcpy(r.brought[turn][thread], mine, size);
  leave(State::kAtWarp);
  return r.brought[turn] + thread / kLanes * kLanes;
}

}  // namespace rootdk::test::fibers
