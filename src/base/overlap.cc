// Extents first; where those meet, both tensors as sorted runs of bytes.
#include "base/overlap.h"

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

namespace rootdk::base {

namespace {

struct Bytes {
  std::int64_t begin, end;
};

std::int64_t address(const void* data) { return static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(data)); }

Bytes extent(const ConstTensor& t) {
  const auto size = size_of(t.dtype);
  Bytes bytes{address(t.data), address(t.data) + size};
  for (std::size_t axis = 0; axis < 4; ++axis) {
    const std::int64_t reach = (t.shape[axis] - 1) * t.strides[axis] * size;
    (reach < 0 ? bytes.begin : bytes.end) += reach;
  }
  return bytes;
}

// Contiguous runs of bytes that make up the tensor, sorted.
std::vector<Bytes> sorted_runs(ConstTensor t) {
  for (std::size_t axis = 0; axis < 4; ++axis)
    if (t.strides[axis] == 0) t.shape[axis] = 1;  // repetitions add nothing
  const auto size = size_of(t.dtype);
  const bool joined = t.strides[3] == 1;
  const std::int64_t inner = joined ? 1 : t.shape[3];
  const std::int64_t run = joined ? t.shape[3] * size : size;
  std::vector<Bytes> runs;
  runs.reserve(static_cast<std::size_t>(t.shape[0] * t.shape[1] * t.shape[2] * inner));
  for (std::int64_t i = 0; i < t.shape[0]; ++i)
    for (std::int64_t j = 0; j < t.shape[1]; ++j)
      for (std::int64_t k = 0; k < t.shape[2]; ++k)
        for (std::int64_t l = 0; l < inner; ++l) {
          const std::int64_t offset = i * t.strides[0] + j * t.strides[1] + k * t.strides[2] + l * t.strides[3];
          const std::int64_t begin = address(t.data) + offset * size;
          runs.push_back({begin, begin + run});
        }
  std::sort(runs.begin(), runs.end(), [](const Bytes& a, const Bytes& b) { return a.begin < b.begin; });
  return runs;
}

}  // namespace

bool overlaps(const ConstTensor& a, const ConstTensor& b) {
  if (!a.present() || !b.present() || a.count() == 0 || b.count() == 0) return false;
  const Bytes ea = extent(a), eb = extent(b);
  if (ea.end <= eb.begin || eb.end <= ea.begin) return false;
  if (ea.begin == eb.begin || a.data == b.data) return true;
  const std::vector<Bytes> ra = sorted_runs(a), rb = sorted_runs(b);
  for (std::size_t i = 0, j = 0; i < ra.size() && j < rb.size();) {
    if (ra[i].end <= rb[j].begin) ++i;
    else if (rb[j].end <= ra[i].begin) ++j;
    else return true;
  }
  return false;
}

bool overlaps_itself(const ConstTensor& t) {
  if (!t.present() || t.count() <= 1) return false;
  // Nested strides (each steps over everything inside it) cannot collide: the common case, without touching elements.
  std::array<std::pair<std::int64_t, std::int64_t>, 4> axes;  // |stride|, size
  for (std::size_t axis = 0; axis < 4; ++axis)  // the stride of a single element means nothing, and may be anything
    axes[axis] = {t.shape[axis] == 1 ? 0 : std::abs(t.strides[axis]), t.shape[axis]};
  std::sort(axes.begin(), axes.end());
  std::int64_t reach = 0;
  bool nested = true;
  for (const auto& [stride, size] : axes) {
    if (size == 1) continue;
    if (stride == 0) return true;
    nested = nested && stride > reach;
    reach += stride * (size - 1);
  }
  if (nested) return false;
  const Bytes all = extent(t);
  if (t.count() > (all.end - all.begin) / size_of(t.dtype)) return true;  // more elements than room
  const std::vector<Bytes> runs = sorted_runs(t);
  for (std::size_t i = 1; i < runs.size(); ++i)
    if (runs[i].begin < runs[i - 1].end) return true;
  return false;
}

}  // namespace rootdk::base
