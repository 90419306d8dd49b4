// Tasks one after another, where there are no threads: what src/base/parallel.h is elsewhere. A build for WebAssembly
// takes it because it looks for headers in src/wasm before src.
#pragma once

#include <cstdint>
#include <string>

namespace rootdk::base {

inline std::string threads_by() { return "no threads"; }
inline int free_threads() { return 1; }
inline void set_threads(int) {}
inline int processors() { return 1; }

template <class Task>
void parallel_tasks(std::int64_t count, int, const Task& task) {
  for (std::int64_t index = 0; index < count; ++index) task(index, 0);
}

template <class Body>
void parallel_for(std::int64_t count, int, const Body& body) {
  for (std::int64_t index = 0; index < count; ++index) body(index);
}

template <class Number>
void shared_add(Number& sum, Number more) {
  sum += more;
}

}  // namespace rootdk::base
