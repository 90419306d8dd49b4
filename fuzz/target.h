// What every target does with its bytes: open them, and if they are taken, look at everything. Refusing is fine;
// anything else that is thrown, or found by a sanitizer, is not.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <vector>

#include "checkpoint/assembly.h"
#include "rootdk/error.h"

namespace rootdk::fuzz {

/// Runs, and stops the fuzzer if rootdk blames itself.
template <class Run>
int refused_or_done(const Run& run) {
  try {
    run();
  } catch (const Error& error) {
    if (error.code() == ErrorCode::kInternal) std::abort();
  }
  return 0;
}

inline void look_at(const checkpoint::MetadataValue& value) {
  const checkpoint::MetadataArray* const array = value.array();
  if (array == nullptr) return;
  const std::uint64_t some = std::min<std::uint64_t>(array->size(), 64);
  for (const auto& element : array->values(array->size() - some, some)) look_at(element);
}

inline void look_at(const checkpoint::Checkpoint& checkpoint, const checkpoint::TensorInfo& tensor) {
  constexpr std::int64_t kMost = 1 << 16;
  if (tensor.width() > kMost) return;
  // The last rows, where reading beyond the end would be seen.
  const std::int64_t rows =
      std::min({tensor.rows(), std::int64_t{8}, kMost / std::max<std::int64_t>(tensor.width(), 1)});
  const auto count = static_cast<std::size_t>(rows * tensor.width());
  std::vector<float> f32(count);
  std::vector<std::int64_t> whole(count);
  refused_or_done([&] { checkpoint.read_f32(tensor.name, tensor.rows() - rows, rows, f32); });
  refused_or_done([&] { checkpoint.read_i64(tensor.name, tensor.rows() - rows, rows, whole); });
  refused_or_done([&] {
    unsigned sum = 0;
    for (const std::byte byte : checkpoint.bytes(tensor.name)) sum += std::to_integer<unsigned>(byte);
    if (sum == 1u << 31) std::abort();  // cannot be; keeps the loop
  });
}

inline int open(const std::uint8_t* data, std::size_t size, checkpoint::Format format) {
  return refused_or_done([&] {
    const auto checkpoint = checkpoint::Assembly::open_memory("fuzzed", std::as_bytes(std::span(data, size)), format);
    for (const auto& entry : checkpoint.metadata()) look_at(entry.value);
    for (const auto& tensor : checkpoint.tensors()) look_at(checkpoint, tensor);
  });
}

}  // namespace rootdk::fuzz
