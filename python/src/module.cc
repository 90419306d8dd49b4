// rootdk._core: the engine, the theory, the laboratory and the audit for Python. The package's own modules are its
// face; this one is thin.
#include <nanobind/nanobind.h>
#include <omp.h>
#include <pthread.h>

#include "bindings.h"
#include "rootdk/error.h"
#include "rootdk/version.h"

namespace nb = nanobind;

namespace {

void translate(const std::exception_ptr& thrown, void*) {
  try {
    std::rethrow_exception(thrown);
  } catch (const rootdk::Error& error) {
    PyObject* type = PyExc_ValueError;
    if (error.code() == rootdk::ErrorCode::kOutOfMemory) type = PyExc_MemoryError;
    if (error.code() == rootdk::ErrorCode::kInternal) type = PyExc_RuntimeError;
    PyErr_SetString(type, error.what());
  }
}

}  // namespace

NB_MODULE(_core, m) {
  nb::set_leak_warnings(false);  // a program that ends while it still holds statistics has done nothing wrong
  nb::register_exception_translator(&translate);
  // Threads do not survive a fork, but OpenMP's list of them does: the child would wait for them for ever. One thread
  // needs no others.
  pthread_atfork(nullptr, nullptr, [] { omp_set_num_threads(1); });
  m.attr("version") = ROOTDK_VERSION;
  rootdk::python::bind_spec(m);
  rootdk::python::bind_attention(m);
  rootdk::python::bind_stats(m);
  rootdk::python::bind_theory(m);
  rootdk::python::bind_lab(m);
  rootdk::python::bind_audit(m);
}
