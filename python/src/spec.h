// A Problem that owns its arrays: what Python fills in, field by field.
#pragma once

#include <nanobind/nanobind.h>

#include <optional>
#include <string>
#include <vector>

#include "arrays.h"
#include "rootdk/problem.h"

namespace rootdk::python {

struct Spec {
  std::string scale = "sqrt_dk";      ///< as Scale::parse takes it
  std::optional<double> scale_value;  ///< in its place
  std::vector<float> scale_heads;     ///< or this
  std::optional<float> softcap;
  bool causal = false;
  std::string diagonal = "bottom_right";
  std::int64_t diagonal_offset = 0;  ///< for "at"
  std::optional<Window> window;
  std::optional<std::vector<std::int64_t>> key_starts, key_lengths, query_lengths;
  std::vector<std::int64_t> q_starts, kv_starts;
  bool has_documents = false;
  std::int64_t document_items = 0;
  std::vector<float> sink, alibi;
  float dropout = 0;
  std::uint64_t seed = 0;
  std::string stats = "none";
  StatsOptions options;
  std::optional<Input> allowed, bias;

  /// Views into this: keep it alive.
  Problem problem() const;
};

void bind_spec(nb::module_& m);

}  // namespace rootdk::python
