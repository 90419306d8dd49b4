// Whole arrays: .npy in and out.
#include "rootdk/checkpoint/npy.h"

#include "base/memory_errors.h"
#include "checkpoint/atomic_file.h"
#include "checkpoint/contents.h"
#include "checkpoint/decode.h"
#include "checkpoint/npy_header.h"
#include "checkpoint/rows.h"
#include "checkpoint/shape.h"

namespace rootdk::checkpoint {

namespace {

template <class T>
NpyArray<T> read_npy(const std::filesystem::path& path) {
  return base::with_memory_errors([&] {
    const auto source = Source::open(path, {});
    const Contents contents = read_npy(*source);
    const StoredTensor& tensor = contents.tensors.front();
    if (std::is_same_v<T, std::int64_t> && !is_whole(tensor.info.encoding))
      refuse("{}: {}, but whole numbers are wanted", source->name(), traits(tensor.info.encoding).name);
    NpyArray<T> array = {tensor.info.shape, {}};
    const std::int64_t rows = tensor.info.rows();
    array.values.resize(static_cast<std::size_t>(rows * tensor.info.width()));
    read_rows(*source, tensor.info, nullptr, {0, rows}, std::span(array.values));
    return array;
  });
}

template <class T>
void write(const std::filesystem::path& path, const char* descr, std::span<const std::int64_t> shape,
           std::span<const T> values) {
  if (shape.size() > kMaxAxes) refuse("shape: {} axes, but at most {} are taken", shape.size(), kMaxAxes);
  const auto count = count_of(shape);
  if (!count) refuse("shape: {} is no array's", show(shape));
  if (static_cast<std::uint64_t>(*count) != values.size())
    refuse("values: {}, but the shape {} has {}", values.size(), show(shape), *count);
  base::with_memory_errors([&] {
    AtomicFile file(path);
    file.append(npy_header(descr, shape));
    file.append(std::as_bytes(values));
    file.commit();
  });
}

}  // namespace

NpyArray<float> read_npy_f32(const std::filesystem::path& path) { return read_npy<float>(path); }
NpyArray<double> read_npy_f64(const std::filesystem::path& path) { return read_npy<double>(path); }
NpyArray<std::int64_t> read_npy_i64(const std::filesystem::path& path) { return read_npy<std::int64_t>(path); }

void write_npy(const std::filesystem::path& path, std::span<const std::int64_t> shape, std::span<const float> values) {
  write(path, "<f4", shape, values);
}
void write_npy(const std::filesystem::path& path, std::span<const std::int64_t> shape, std::span<const double> values) {
  write(path, "<f8", shape, values);
}
void write_npy(const std::filesystem::path& path, std::span<const std::int64_t> shape,
               std::span<const std::int64_t> values) {
  write(path, "<i8", shape, values);
}

}  // namespace rootdk::checkpoint
