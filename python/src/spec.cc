// The Problem that a Spec stands for, and how Python makes one: python/rootdk/_description.py.
#include "spec.h"

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstddef>
#include <iterator>
#include <string>
#include <type_traits>
#include <utility>

#include "base/refuse.h"
#include "base/visibility.h"
#include "description.h"
#include "rootdk/plan.h"

namespace rootdk::python {

namespace {

constexpr const char* kLevels[] = {"none", "basic", "full"};  // in the order of StatsLevel

StatsLevel level_of(const std::string& name) {
  for (std::size_t i = 0; i < std::size(kLevels); ++i)
    if (name == kLevels[i]) return static_cast<StatsLevel>(i);
  base::refuse("stats: \"{}\", but None, \"basic\" or \"full\" is wanted", name);
}

}  // namespace

Spec::Spec(std::vector<std::int64_t> numbers, const std::vector<double>& reals, std::vector<float> scale,
           std::vector<float> sink)
    : numbers_(std::move(numbers)), scale_(std::move(scale)), sink_(std::move(sink)) {
  read_description(numbers_, reals, problem_, slopes_);
  if (!scale_.empty()) problem_.scale = Scale::per_head(scale_);
  problem_.sink = sink_;
}

Problem Spec::problem() const {
  Problem p = problem_;
  p.mask.allowed = view_of(allowed);
  p.mask.bias = view_of(bias);
  p.stats = stats;
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

/// As rootdk_visible_keys: into [batch, len_q, 4].
void visible_keys(const Spec& spec, std::int64_t batch, std::int64_t len_q, std::int64_t len_kv, nb::handle ranges) {
  Problem masked;
  masked.mask = spec.problem().mask;
  masked.mask.allowed = masked.mask.bias = {}, masked.mask.alibi_slopes = {};
  Shape shape;
  shape.batch = batch, shape.len_q = len_q, shape.len_kv = len_kv, shape.dim_qk = shape.dim_v = 1;
  make_plan(masked, shape);  // refuses what is wrong
  const auto out = nb::cast<nb::ndarray<std::int64_t, nb::ndim<3>, nb::c_contig, nb::device::cpu>>(ranges);
  if (out.shape(0) != static_cast<std::size_t>(batch) || out.shape(1) != static_cast<std::size_t>(len_q) ||
      out.shape(2) != 4)
    base::refuse("ranges: [{}, {}, 4] is wanted", batch, len_q);
  base::write_visible_keys(base::view_of(masked.mask, shape), batch, out.data());
}

}  // namespace

void bind_spec(nb::module_& m) {
  nb::class_<Spec> spec(m, "Spec");
  spec.def(nb::init<std::vector<std::int64_t>, const std::vector<double>&, std::vector<float>, std::vector<float>>())
      .def("set_allowed", [](Spec& s, nb::handle array) { s.allowed = optional_input("mask", array); })
      .def("set_bias", [](Spec& s, nb::handle array) { s.bias = optional_input("bias", array); })
      .def_prop_rw(
          "stats", [](const Spec& s) { return kLevels[static_cast<std::size_t>(s.stats)]; },
          [](Spec& s, const std::string& level) { s.stats = level_of(level); });
  option<&StatsOptions::sample>(spec, "sample");
  option<&StatsOptions::sample_offset>(spec, "sample_offset");
  option<&StatsOptions::first_query>(spec, "first_query");
  option<&StatsOptions::causes>(spec, "causes");
  option<&StatsOptions::by_keys>(spec, "by_keys");
  option<&StatsOptions::gaps>(spec, "gaps");
  option<&StatsOptions::key_mass>(spec, "key_mass");
  m.def("visible_keys", &visible_keys);
}

}  // namespace rootdk::python
