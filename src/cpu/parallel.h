// Tasks over threads. Which thread runs which task is left to chance, so tasks must not care.
#pragma once

#include <omp.h>

#include <atomic>
#include <cstdint>
#include <exception>

namespace rootdk::cpu {

/// Calls task(index, thread) for index 0 … count−1, each once, in roughly ascending order. The first exception stops
/// the rest and is thrown to the caller: none may leave a parallel region.
template <class Task>
void parallel_tasks(std::int64_t count, int threads, const Task& task) {
  if (count <= 0) return;
  if (threads <= 1 || count == 1) {
    for (std::int64_t index = 0; index < count; ++index) task(index, 0);
    return;
  }
  std::atomic<std::int64_t> next{0};
  std::atomic<bool> failed{false};
  std::exception_ptr error;
#pragma omp parallel num_threads(threads)
  {
    try {
      for (std::int64_t index; !failed && (index = next.fetch_add(1)) < count;) task(index, omp_get_thread_num());
    } catch (...) {
      if (!failed.exchange(true)) error = std::current_exception();
    }
  }
  if (error) std::rethrow_exception(error);
}

}  // namespace rootdk::cpu
