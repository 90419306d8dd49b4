// Test memory on the device: a Buffer's bytes, guards and all, there and back.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <span>
#include <utility>
#include <vector>

#include "support/buffer.h"

namespace rootdk::test {

inline void must(cudaError_t status, const char* what) {
  if (status == cudaSuccess) return;
  std::fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(status));
  std::exit(3);
}

class DeviceMemory {
 public:
  DeviceMemory() = default;
  explicit DeviceMemory(std::size_t bytes) {
    if (bytes > 0) must(cudaMalloc(&data_, bytes), "cudaMalloc");
  }
  DeviceMemory(DeviceMemory&& other) noexcept : data_(std::exchange(other.data_, nullptr)) {}
  ~DeviceMemory() { cudaFree(data_); }
  std::byte* data() const { return static_cast<std::byte*>(data_); }

 private:
  void* data_ = nullptr;
};

/// A Buffer's twin.
class Twin {
 public:
  explicit Twin(Buffer& host) : host_(&host), memory_(host.memory().size()) { push(); }

  void push() { copy(memory_.data(), host_->memory().data(), cudaMemcpyHostToDevice); }
  void pull() { copy(host_->memory().data(), memory_.data(), cudaMemcpyDeviceToHost); }

  Tensor tensor() {
    Tensor t = host_->tensor();
    if (!t.present()) return t;
    t.data = memory_.data() + (static_cast<std::byte*>(t.data) - host_->memory().data());
    t.device = Device::kCuda;
    return t;
  }

 private:
  void copy(void* to, const void* from, cudaMemcpyKind kind) {
    if (!host_->memory().empty()) must(cudaMemcpy(to, from, host_->memory().size(), kind), "cudaMemcpy");
  }

  Buffer* host_;
  DeviceMemory memory_;
};

}  // namespace rootdk::test
