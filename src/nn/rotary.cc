// Angles for all positions first, then pairs turned forwards or, for gradients, back.
#include "base/refuse.h"
#include "rootdk/nn/rotary.h"

#include <cmath>
#include <cstddef>
#include <vector>

#include "base/parallel.h"
#include "nn/rotary.h"

namespace rootdk::nn {

using base::refuse;

namespace {

// Farther than any real position, and still exact in double.
constexpr std::int64_t kMaxPosition = std::int64_t{1} << 50;

// Below so many components waking threads takes longer than the work.
constexpr std::int64_t kWorthThreadsToTurn = 1 << 14;
int threads_for(std::int64_t components) { return components > kWorthThreadsToTurn ? base::free_threads() : 1; }

template <class T>
struct Angle {
  T cos, sin;
};

// [positions, pairs]
template <class T>
std::vector<Angle<T>> angles_of(const Rotary& rotary, std::int64_t dim_qk, std::span<const std::int64_t> positions,
                                Turn turn) {
  const std::int64_t pairs = rotary.turning_dims(dim_qk) / 2;
  const double direction = turn == Turn::kForward ? 1.0 : -1.0;
  std::vector<double> frequency(static_cast<std::size_t>(pairs));
  for (std::int64_t i = 0; i < pairs; ++i) frequency[static_cast<std::size_t>(i)] = rotary.frequency(i, dim_qk);

  const auto rows = static_cast<std::int64_t>(positions.size());
  std::vector<Angle<T>> angles(static_cast<std::size_t>(rows * pairs));
  base::parallel_for(rows, threads_for(rows * pairs), [&](std::int64_t r) {
    const double position = static_cast<double>(positions[static_cast<std::size_t>(r)] + rotary.first_position);
    for (std::int64_t i = 0; i < pairs; ++i) {
      const double angle = position * frequency[static_cast<std::size_t>(i)];
      angles[static_cast<std::size_t>(r * pairs + i)] = {static_cast<T>(std::cos(angle)),
                                                         static_cast<T>(direction * std::sin(angle))};
    }
  });
  return angles;
}

template <class T>
void turn_pairs(const Rotary& rotary, const Tensor& x, std::span<const std::int64_t> positions, Turn turn) {
  const std::int64_t batch = x.shape[0], heads = x.shape[1], length = x.shape[2], dim_qk = x.shape[3];
  const std::int64_t pairs = rotary.turning_dims(dim_qk) / 2;
  const bool split = rotary.pairing == Rotary::Pairing::kHalfSplit;
  const bool shared = static_cast<std::int64_t>(positions.size()) == length;  // by the whole batch
  const std::int64_t step = (split ? 1 : 2) * x.strides[3];         // from a pair's first component to the next pair's
  const std::int64_t partner = (split ? pairs : 1) * x.strides[3];  // from a pair's first component to its second
  const std::vector<Angle<T>> angles = angles_of<T>(rotary, dim_qk, positions, turn);
  auto* const data = static_cast<T*>(x.data);

  base::parallel_for(batch * length, threads_for(x.count()), [&](std::int64_t row) {
    const std::int64_t b = row / length, t = row % length;
    const Angle<T>* const angle = angles.data() + (shared ? t : row) * pairs;
    for (std::int64_t h = 0; h < heads; ++h) {
      T* const head = data + b * x.strides[0] + h * x.strides[1] + t * x.strides[2];
      for (std::int64_t i = 0; i < pairs; ++i) {
        T& first = head[i * step];
        T& second = head[i * step + partner];
        const T a = first, c = second;
        first = a * angle[i].cos - c * angle[i].sin;
        second = a * angle[i].sin + c * angle[i].cos;
      }
    }
  });
}

}  // namespace

double Rotary::frequency(std::int64_t pair, std::int64_t dim_qk) const {
  return std::pow(base, -2.0 * static_cast<double>(pair) / static_cast<double>(turning_dims(dim_qk)));
}

void check_rotary(const Rotary& rotary, std::int64_t dim_qk) {
  if (!(rotary.base > 0 && std::isfinite(rotary.base)))
    refuse("rotary.base: {}, but a finite positive number is wanted", rotary.base);
  const std::int64_t dims = rotary.turning_dims(dim_qk);
  if (dims < 0 || dims > dim_qk || dims % 2 != 0)
    refuse("rotary.dims: {}, but an even number of at most dim_qk = {} is wanted", dims, dim_qk);
  if (rotary.first_position > kMaxPosition || rotary.first_position < -kMaxPosition)
    refuse("rotary.first_position: {} is beyond ±{}", rotary.first_position, kMaxPosition);
}

void rotate(const Rotary& rotary, const Tensor& x, std::span<const std::int64_t> positions, Turn turn) {
  const std::int64_t batch = x.shape[0], heads = x.shape[1], length = x.shape[2], dim_qk = x.shape[3];
  if (batch < 0 || heads < 0 || length < 0 || dim_qk < 0)
    refuse("x: shape is [{}, {}, {}, {}], but sizes cannot be negative", batch, heads, length, dim_qk);
  if (x.dtype != DType::kF32 && x.dtype != DType::kF64)
    refuse("x: dtype is {}, but f32 or f64 is wanted", name_of(x.dtype));
  if (x.device != Device::kCpu) refuse("x: lies on a GPU, but rotate runs on the CPU");
  if (!x.present() && x.count() != 0) refuse("x: data is null, but it has {} values", x.count());
  const auto given = static_cast<std::int64_t>(positions.size());
  if (given != length && given != batch * length)
    refuse("positions: {} entries, but length {} or batch × length {} are wanted", given, length, batch * length);
  for (const std::int64_t position : positions)
    if (position > kMaxPosition || position < -kMaxPosition)
      refuse("positions: {} is beyond ±{}", position, kMaxPosition);
  check_rotary(rotary, dim_qk);
  if (x.count() == 0) return;
  if (x.dtype == DType::kF64) {
    turn_pairs<double>(rotary, x, positions, turn);
  } else {
    turn_pairs<float>(rotary, x, positions, turn);
  }
}

}  // namespace rootdk::nn
