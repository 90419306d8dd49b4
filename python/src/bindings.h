// What each file adds to the module.
#pragma once

#include <nanobind/nanobind.h>

namespace rootdk::python {

void bind_spec(nanobind::module_& m);
void bind_attention(nanobind::module_& m);
void bind_stats(nanobind::module_& m);
void bind_theory(nanobind::module_& m);
void bind_lab(nanobind::module_& m);
void bind_audit(nanobind::module_& m);

}  // namespace rootdk::python
