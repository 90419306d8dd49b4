// Rows of tensors read on all threads into nn::Linear, transposed or sliced as the family says; norms likewise.
#include "audit/linear_of.h"

#include <algorithm>
#include <cstddef>

#include "base/parallel.h"
#include "rootdk/qk_norm.h"

namespace rootdk::audit {

using checkpoint::Checkpoint;
using checkpoint::TensorInfo;

namespace {

// What a thread reads at a time.
constexpr std::int64_t kValuesTogether = 1 << 18;

std::size_t at_index(std::int64_t i) { return static_cast<std::size_t>(i); }

// Rows first … first + rows − 1 of a tensor [_, width], on all threads. What is compressed is read from its beginning
// every time.
void read_rows(const Checkpoint& checkpoint, const TensorInfo& tensor, std::int64_t first, std::int64_t rows,
               std::span<float> out) {
  const std::int64_t width = tensor.width();
  const std::int64_t chunk =
      tensor.compressed ? rows : std::clamp<std::int64_t>(kValuesTogether / std::max<std::int64_t>(width, 1), 1, rows);
  base::parallel_tasks((rows + chunk - 1) / chunk, base::free_threads(), [&](std::int64_t task, int) {
    const std::int64_t begin = task * chunk, count = std::min(chunk, rows - begin);
    checkpoint.read_f32(tensor.name, first + begin, count,
                        out.subspan(at_index(begin * width), at_index(count * width)));
  });
}

}  // namespace

std::vector<float> rows_of(const Checkpoint& checkpoint, const std::string& tensor, std::int64_t rows) {
  const TensorInfo& info = checkpoint.at(tensor);
  std::vector<float> out(at_index(rows * info.width()));
  read_rows(checkpoint, info, 0, rows, out);
  return out;
}

nn::Linear linear_of(const Checkpoint& checkpoint, const Part& part, std::int64_t heads) {
  nn::Linear out(part.width, heads * part.rows, !part.bias.empty());
  const TensorInfo& tensor = checkpoint.at(part.weight);
  if (part.transposed) {
    const std::vector<float> all = rows_of(checkpoint, part.weight, part.width);
    base::parallel_tasks(out.out, base::free_threads(), [&](std::int64_t row, int) {
      const std::int64_t column = part.row_of(row / part.rows) + row % part.rows;
      for (std::int64_t i = 0; i < part.width; ++i)
        out.weight[at_index(row * part.width + i)] = all[at_index(i * tensor.width() + column)];
    });
  } else {
    const std::int64_t each = part.rows * part.width;
    const bool together = part.row_of(heads - 1) == part.first + (heads - 1) * part.rows;
    if (together) read_rows(checkpoint, tensor, part.first, out.out, out.weight);
    else
      for (std::int64_t h = 0; h < heads; ++h)
        read_rows(checkpoint, tensor, part.row_of(h), part.rows,
                  std::span(out.weight).subspan(at_index(h * each), at_index(each)));
  }
  if (!part.bias.empty()) {
    const std::vector<float> bias = checkpoint.read_f32(part.bias);
    for (std::int64_t h = 0; h < heads; ++h)
      std::copy_n(bias.begin() + part.row_of(h), part.rows, out.bias.begin() + h * part.rows);
  }
  return out;
}

nn::Linear linear_of(const Checkpoint& checkpoint, const Dense& dense) {
  return linear_of(checkpoint, {dense.weight, dense.bias, dense.transposed, dense.out, dense.in, dense.first}, 1);
}

ReadNorm::ReadNorm(const Checkpoint& checkpoint, const NormPlace& place, double epsilon)
    : kind_(place.kind), epsilon_(epsilon) {
  if (!place.gain.empty())
    for (const double gain : checkpoint.read_f64(place.gain))
      gain_.push_back(static_cast<float>(gain + place.gain_offset));
  if (!place.bias.empty()) bias_ = checkpoint.read_f32(place.bias);
}

void ReadNorm::apply(const Tensor& x) const {
  if (!present()) return;
  const QkNorm norm = {kind_ == theory::Norm::Kind::kRms ? QkNorm::Kind::kRms : QkNorm::Kind::kLayer, epsilon_, gain_};
  rootdk::normalise(norm, x, x);
  if (bias_.empty()) return;
  auto* const data = static_cast<float*>(x.data);
  const std::int64_t heads = x.shape[1], length = x.shape[2];
  base::parallel_tasks(x.shape[0] * heads, base::free_threads(), [&](std::int64_t task, int) {
    float* const rows = data + task / heads * x.strides[0] + task % heads * x.strides[1];
    for (std::int64_t t = 0; t < length; ++t)
      for (std::int64_t i = 0; i < x.shape[3]; ++i) rows[t * x.strides[2] + i * x.strides[3]] += bias_[at_index(i)];
  });
}

void ReadNorm::apply(std::span<float> x, std::int64_t width) const {
  // Cut, so that threads have something to share out.
  constexpr std::int64_t kRows = 256;
  const std::int64_t rows = static_cast<std::int64_t>(x.size()) / width, whole = rows / kRows;
  if (whole > 0) apply(tensor(x.data(), {whole, 1, kRows, width}));
  if (rows % kRows > 0) apply(tensor(x.data() + whole * kRows * width, {1, 1, rows % kRows, width}));
}

}  // namespace rootdk::audit
