// Ctrl-C during a long call that has released the lock.
#pragma once

#include <nanobind/nanobind.h>

namespace rootdk::python {

/// Whether a signal handler has raised, usually KeyboardInterrupt. The exception stays set for raise_pending().
/// Handlers run in the main thread only: elsewhere this is always false.
inline bool signals_are_pending() {
  const nanobind::gil_scoped_acquire gil;
  return PyErr_CheckSignals() != 0;
}

[[noreturn]] inline void raise_pending() {
  const nanobind::gil_scoped_acquire gil;
  throw nanobind::python_error();
}

}  // namespace rootdk::python
