// A megabyte at most stays with the thread.
#include "workspace.h"

#include <fmt/format.h>

#include <memory>
#include <new>

#include "base/arena.h"
#include "rootdk/error.h"

namespace rootdk::torch_operators {

namespace {

constexpr std::size_t kKept = std::size_t{1} << 20;

std::byte* aligned(std::size_t bytes) {
  try {
    return static_cast<std::byte*>(::operator new (bytes, std::align_val_t{base::kAlignment}));
  } catch (const std::bad_alloc&) {
    throw Error(ErrorCode::kOutOfMemory, fmt::format("workspace: {} bytes could not be allocated", bytes));
  }
}

struct Free {
  void operator()(std::byte* memory) const { ::operator delete (memory, std::align_val_t{base::kAlignment}); }
};

struct Kept {
  std::unique_ptr<std::byte, Free> memory;
  std::size_t bytes = 0;
};

Kept& kept() {
  thread_local Kept of_this_thread;
  return of_this_thread;
}

}  // namespace

Workspace::Workspace(std::size_t bytes) : bytes_(bytes) {
  Kept& mine = kept();
  own_ = bytes > kKept;
  if (own_) {
    memory_ = aligned(bytes);
    return;
  }
  if (bytes > mine.bytes) {
    mine = {};
    mine.memory.reset(aligned(bytes));
    mine.bytes = bytes;
  }
  memory_ = mine.memory.get();
}

Workspace::~Workspace() {
  if (own_) Free()(memory_);
}

}  // namespace rootdk::torch_operators
