// A value's bits under another type: std::bit_cast, which not every standard library has yet.
#pragma once

namespace rootdk::base {

template <class To, class From>
constexpr To bit_cast(const From& from) {
  static_assert(sizeof(To) == sizeof(From));
  return __builtin_bit_cast(To, from);
}

}  // namespace rootdk::base
