// What the options of an experiment ask for in memory, and which of them is to blame.
#pragma once

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "base/free_memory.h"
#include "lab/want.h"
#include "rootdk/memory.h"
#include "rootdk/plan.h"

namespace rootdk::lab {

/// An option that more memory goes with: what it is called, and the member, or a function that returns a reference to
/// it.
template <class Place>
struct Size {
  const char* name;
  Place place;
};
template <class Place>
Size(const char*, Place) -> Size<Place>;

inline std::string shown(std::int64_t value) { return fmt::format("{}", value); }
inline std::string shown(const std::vector<std::int64_t>& values) {
  const std::string most = shown(*std::max_element(values.begin(), values.end()));
  return values.size() == 1 ? most : fmt::format("{}, the largest of {},", most, values.size());
}
template <class T>
std::string shown(const std::vector<T>& values) {
  return fmt::format("{} of them", values.size());
}

/// `bytes` computes them, in floating point, from options that were checked. To blame is the size which, put back to
/// its default, would save most.
template <class Options, class Bytes, class... Place>
MemoryNeed need_of(const Options& options, const Bytes& bytes, const Size<Place>&... sizes) {
  double least = bytes(options);
  MemoryNeed need = {base::saturated(least), Machine::here().threads, {}, {}};
  const Options usual;
  const auto suspect = [&](const auto& size) {
    Options other = options;
    std::invoke(size.place, other) = std::invoke(size.place, usual);
    try {
      const double without = bytes(other);
      if (without >= least) return;
      least = without;
    } catch (const Error&) {  // does not fit the rest
      return;
    }
    need.argument = size.name;
    need.value = shown(std::invoke(size.place, options));
  };
  (suspect(sizes), ...);
  return need;
}

inline double real(std::int64_t value) { return static_cast<double>(value); }
inline double real(std::size_t value) { return static_cast<double>(value); }

inline double largest(const std::vector<std::int64_t>& values) {
  return real(*std::max_element(values.begin(), values.end()));
}

}  // namespace rootdk::lab
