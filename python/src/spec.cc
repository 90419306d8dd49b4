// The Problem that a Spec stands for, and its fields as properties of a Python class.
#include "spec.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <type_traits>
#include <utility>

#include "base/refuse.h"

namespace rootdk::python {

namespace {

Diagonal diagonal_of(const std::string& name, std::int64_t offset) {
  if (name == "bottom_right") return Diagonal::bottom_right();
  if (name == "top_left") return Diagonal::top_left();
  if (name == "last_key") return Diagonal::last_key();
  if (name == "at") return Diagonal::at(offset);
  base::refuse("diagonal: {}, but \"bottom_right\", \"top_left\", \"last_key\" or a number is wanted", name);
}

StatsLevel level_of(const std::string& name) {
  if (name == "none") return StatsLevel::kNone;
  if (name == "basic") return StatsLevel::kBasic;
  if (name == "full") return StatsLevel::kFull;
  base::refuse("stats: \"{}\", but None, \"basic\" or \"full\" is wanted", name);
}

}  // namespace

Problem Spec::problem() const {
  Problem p;
  if (!scale_heads.empty()) p.scale = Scale::per_head(scale_heads);
  else if (scale_value) p.scale = Scale::constant(*scale_value);
  else p.scale = Scale::parse(scale);
  p.soft_cap = softcap;
  p.mask.causal = causal;
  p.mask.diagonal = diagonal_of(diagonal, diagonal_offset);
  p.mask.window = window;
  if (key_starts) p.mask.key_starts = *key_starts;
  if (key_lengths) p.mask.key_lengths = *key_lengths;
  if (query_lengths) p.mask.query_lengths = *query_lengths;
  if (has_documents) p.mask.documents = Documents{q_starts, kv_starts, document_items};
  p.mask.allowed = view_of(allowed);
  p.mask.bias = view_of(bias);
  p.mask.alibi_slopes = alibi;
  p.sink = sink;
  p.dropout = {dropout, seed};
  p.stats = level_of(stats);
  p.stats_options = options;
  return p;
}

namespace {

/// A field of the options, as a property of the spec.
template <auto field>
void option(nb::class_<Spec>& spec, const char* name) {
  using Value = std::remove_reference_t<decltype(std::declval<StatsOptions&>().*field)>;
  spec.def_prop_rw(
      name, [](const Spec& s) { return s.options.*field; }, [](Spec& s, Value value) { s.options.*field = value; });
}

}  // namespace

void bind_spec(nb::module_& m) {
  nb::class_<Spec> spec(m, "Spec");
  spec.def(nb::init<>())
      .def_rw("scale", &Spec::scale)
      .def_rw("scale_value", &Spec::scale_value, nb::arg().none())
      .def_rw("scale_heads", &Spec::scale_heads)
      .def_rw("softcap", &Spec::softcap, nb::arg().none())
      .def_rw("causal", &Spec::causal)
      .def_rw("diagonal", &Spec::diagonal)
      .def_rw("diagonal_offset", &Spec::diagonal_offset)
      .def(
          "set_window",
          [](Spec& s, std::optional<std::int64_t> left, std::optional<std::int64_t> right) {
            s.window = Window{left.value_or(Window::kUnbounded), right.value_or(Window::kUnbounded)};
          },
          nb::arg("left").none(), nb::arg("right").none())
      .def("set_key_starts", [](Spec& s, std::vector<std::int64_t> starts) { s.key_starts = std::move(starts); })
      .def("set_key_lengths", [](Spec& s, std::vector<std::int64_t> lengths) { s.key_lengths = std::move(lengths); })
      .def("set_query_lengths",
           [](Spec& s, std::vector<std::int64_t> lengths) { s.query_lengths = std::move(lengths); })
      .def("set_documents",
           [](Spec& s, std::vector<std::int64_t> q, std::vector<std::int64_t> kv, std::int64_t items) {
             s.q_starts = std::move(q);
             s.kv_starts = std::move(kv);
             s.has_documents = true;
             s.document_items = items;
           })
      .def("set_allowed", [](Spec& s, nb::handle array) { s.allowed = optional_input("mask", array); })
      .def(
          "set_bias", [](Spec& s, nb::handle array) { s.bias = optional_input("bias", array); }, nb::arg().none())
      .def_rw("sink", &Spec::sink)
      .def_rw("alibi", &Spec::alibi)
      .def_rw("dropout", &Spec::dropout)
      .def_rw("seed", &Spec::seed)
      .def_rw("stats", &Spec::stats);
  option<&StatsOptions::sample>(spec, "sample");
  option<&StatsOptions::sample_offset>(spec, "sample_offset");
  option<&StatsOptions::first_query>(spec, "first_query");
  option<&StatsOptions::causes>(spec, "causes");
  option<&StatsOptions::by_keys>(spec, "by_keys");
  option<&StatsOptions::gaps>(spec, "gaps");
  option<&StatsOptions::key_mass>(spec, "key_mass");
}

}  // namespace rootdk::python
