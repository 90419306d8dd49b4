// Memory that is counted: tensors, messages and workspaces of one call on one rank.
#pragma once

#include <atomic>
#include <cstring>
#include <memory>
#include <new>

#include "base/arena.h"
#include "rootdk/distributed/transport.h"
#include "rootdk/tensor.h"

namespace rootdk::distributed {

/// What is allocated now, and the most there was. A message may be freed by the thread of another rank.
class Meter {
 public:
  void take(std::int64_t bytes) {
    const std::int64_t now = now_.fetch_add(bytes) + bytes;
    std::int64_t peak = peak_.load();
    while (peak < now && !peak_.compare_exchange_weak(peak, now)) {
    }
  }
  void give(std::int64_t bytes) { now_.fetch_sub(bytes); }
  std::int64_t peak() const { return peak_.load(); }

 private:
  std::atomic<std::int64_t> now_{0}, peak_{0};
};

using SharedMeter = std::shared_ptr<Meter>;

/// Frees memory of a Memory, and counts that.
struct Free {
  SharedMeter meter;
  std::int64_t bytes = 0;
  void operator()(std::byte* memory) const {
    ::operator delete (memory, std::align_val_t{base::kAlignment});
    meter->give(bytes);
  }
};

/// Zeros, aligned as workspaces are.
class Memory {
 public:
  Memory() = default;
  Memory(SharedMeter meter, std::int64_t bytes)
      : bytes_(bytes),
        data_(static_cast<std::byte*>(
                  ::operator new (static_cast<std::size_t>(bytes), std::align_val_t{base::kAlignment})),
              Free{std::move(meter), bytes}) {
    data_.get_deleter().meter->take(bytes);
    std::memset(data_.get(), 0, static_cast<std::size_t>(bytes));
  }
  std::byte* data() const { return data_.get(); }
  std::span<std::byte> span() const { return {data_.get(), static_cast<std::size_t>(bytes_)}; }

 private:
  std::int64_t bytes_ = 0;
  std::unique_ptr<std::byte, Free> data_;
};

inline std::int64_t bytes_of(DType dtype, const Extents& shape) {
  return shape[0] * shape[1] * shape[2] * shape[3] * size_of(dtype);
}

/// A tensor with its memory: row-major, zero at first.
class Block {
 public:
  Block() = default;
  Block(const SharedMeter& meter, DType dtype, const Extents& shape)
      : memory_(meter, bytes_of(dtype, shape)), view_{memory_.data(), dtype, Device::kCpu, shape, row_major(shape)} {}
  const Tensor& tensor() const { return view_; }

 private:
  Memory memory_;
  Tensor view_;
};

inline Message make_message(const SharedMeter& meter, std::int64_t bytes) {
  meter->take(bytes);
  return {new std::vector<std::byte>(static_cast<std::size_t>(bytes)), [meter, bytes](std::vector<std::byte>* memory) {
            delete memory;
            meter->give(bytes);
          }};
}

}  // namespace rootdk::distributed
