// A Problem that owns its arrays, as Python poses it: two lists of numbers, and what is there once for each head.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "arrays.h"
#include "rootdk/problem.h"

namespace rootdk::python {

class Spec {
 public:
  Spec(std::vector<std::int64_t> numbers, const std::vector<double>& reals, std::vector<float> scale,
       std::vector<float> sink);

  Spec(const Spec&) = delete;
  Spec& operator=(const Spec&) = delete;

  /// Views into this: keep it alive.
  Problem problem() const;

  std::optional<Input> allowed, bias;
  StatsLevel stats = StatsLevel::kNone;
  StatsOptions options;

 private:
  std::vector<std::int64_t> numbers_;
  std::vector<float> scale_, sink_, slopes_;
  Problem problem_;
};

void bind_spec(nb::module_& m);

}  // namespace rootdk::python
