// Tasks over threads: all that rootdk takes from OpenMP. Which thread runs which task is left to chance, so tasks must
// not care. Where there are no threads, src/wasm/base/parallel.h is found in its place.
#pragma once

#include <omp.h>

#include <atomic>
#include <cstdint>
#include <exception>
#include <string>

namespace rootdk::base {

/// What makes the threads, and its version.
inline std::string threads_by() { return "OpenMP " + std::to_string(_OPENMP); }

/// Threads that a loop may use here: 1 inside somebody's parallel region, where the cores are taken.
inline int free_threads() { return omp_in_parallel() != 0 ? 1 : omp_get_max_threads(); }
inline void set_threads(int threads) { omp_set_num_threads(threads); }
inline int processors() { return omp_get_num_procs(); }

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

/// Calls body(index) for index 0 … count−1, an even share of them on each thread. It must not throw.
template <class Body>
void parallel_for(std::int64_t count, int threads, const Body& body) {
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1)
  for (std::int64_t index = 0; index < count; ++index) body(index);
}

/// Adds to a sum that other threads add to as well.
template <class Number>
void shared_add(Number& sum, Number more) {
  std::atomic_ref<Number>(sum).fetch_add(more, std::memory_order_relaxed);
}

}  // namespace rootdk::base
