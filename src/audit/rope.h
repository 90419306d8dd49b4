// The frequencies of rotary positions, as a configuration gives them: plain, or stretched for longer contexts.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "audit/settings.h"
#include "rootdk/audit/model.h"

namespace rootdk::audit {

struct Stretched {
  std::vector<double> frequencies;
  double magnitude = 1;                   ///< what turns is multiplied by this, on both sides
  double scale_factor = 1;                ///< the scale is multiplied by this (DeepSeek's mscale_all_dim)
  std::vector<double> short_frequencies;  ///< as Rotary has them
  std::int64_t short_length = 0;
  std::string note;   ///< what was not understood
  bool exact = true;  ///< false: the model turns otherwise
};

/// base^(−2i/dims), i < dims/2.
std::vector<double> plain_frequencies(double base, std::int64_t dims);

/// As "rope_scaling" asks for (linear, llama3, yarn, longrope), in a context of so many positions.
Stretched frequencies_of(const Settings& settings, double base, std::int64_t dims, std::int64_t context);

}  // namespace rootdk::audit
