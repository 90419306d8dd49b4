// Pairs of components turned by position × frequency, neighbours or halves, with angles in double.
#include "audit/turn.h"

#include <cmath>
#include <cstdint>
#include <vector>

#include "base/parallel.h"

namespace rootdk::audit {

void turn(const theory::Rotation& rotation, double magnitude, const Tensor& x) {
  const auto pairs = static_cast<std::int64_t>(rotation.frequencies.size());
  const auto [batch, heads, length, dim] = x.shape;
  if (pairs == 0 || batch * heads * dim == 0) return;
  const bool halves = rotation.pairing == theory::Rotation::Pairing::kHalfSplit;
  const std::int64_t step = (halves ? 1 : 2) * x.strides[3], partner = (halves ? pairs : 1) * x.strides[3];
  auto* const data = static_cast<float*>(x.data);
  base::parallel_tasks(length, base::free_threads(), [&](std::int64_t t, int) {
    std::vector<double> cosines, sines;
    for (const double frequency : rotation.frequencies) {
      const double angle = static_cast<double>(t) * frequency;
      cosines.push_back(magnitude * std::cos(angle));
      sines.push_back(magnitude * std::sin(angle));
    }
    for (std::int64_t b = 0; b < x.shape[0]; ++b)
      for (std::int64_t h = 0; h < x.shape[1]; ++h) {
        float* const head = data + b * x.strides[0] + h * x.strides[1] + t * x.strides[2];
        for (std::int64_t i = 0; i < pairs; ++i) {
          const auto at = static_cast<std::size_t>(i);
          float &first = head[i * step], &second = head[i * step + partner];
          const double a = first, c = second;
          first = static_cast<float>(cosines[at] * a - sines[at] * c);
          second = static_cast<float>(sines[at] * a + cosines[at] * c);
        }
      }
  });
}

}  // namespace rootdk::audit
