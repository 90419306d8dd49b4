// An array whose every element will be written before it is read.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

namespace rootdk::nn {

template <class T>
class Buffer {
 public:
  explicit Buffer(std::int64_t count) : count_(static_cast<std::size_t>(count)), data_(new T[count_]) {}
  T* data() const { return data_.get(); }
  std::span<T> values() const { return {data_.get(), count_}; }

 private:
  std::size_t count_;
  std::unique_ptr<T[]> data_;
};

}  // namespace rootdk::nn
