#include "arrays.h"

#include <algorithm>
#include <bit>
#include <span>
#include <system_error>

#include "base/refuse.h"
#include "rootdk/checkpoint/checkpoint.h"

namespace rootdk::app {

using base::refuse;

namespace {

static_assert(std::endian::native == std::endian::little, "arrays are written as they lie in memory");

template <class T>
std::span<T> numbers_of(Array& array) {
  return {reinterpret_cast<T*>(array.bytes.data()), array.bytes.size() / sizeof(T)};
}

}  // namespace

std::int64_t Array::count() const {
  std::int64_t count = 1;
  for (const std::int64_t size : shape) count *= size;
  return count;
}

double Array::at(std::int64_t i) const {
  if (dtype == DType::kF64) return reinterpret_cast<const double*>(bytes.data())[i];
  return static_cast<double>(reinterpret_cast<const float*>(bytes.data())[i]);
}

ConstTensor Array::view(const std::string& name) const {
  if (shape.size() < 2 || shape.size() > 4)
    refuse("{}: {} axes, but 2 to 4 are wanted: [[[batch,] heads,] length, dim]", name, shape.size());
  Extents extents = {1, 1, 1, 1};
  std::copy(shape.rbegin(), shape.rend(), extents.rbegin());
  return {bytes.data(), dtype, Device::kCpu, extents, row_major(extents)};
}

Array make_array(DType dtype, std::vector<std::int64_t> shape) {
  Array out{dtype, std::move(shape), {}};
  out.bytes.resize(static_cast<std::size_t>(out.count() * size_of(dtype)));
  return out;
}

Array read_array(const std::filesystem::path& path, Precision precision) {
  std::error_code error;
  if (std::filesystem::is_directory(path, error)) refuse("{}: is a folder, but a .npy file is wanted", path.string());
  const checkpoint::Checkpoint file = checkpoint::Checkpoint::open(path);
  if (file.format() != checkpoint::Format::kNpy) refuse("{}: is not a .npy file", path.string());
  const checkpoint::TensorInfo& info = file.tensors().front();
  const bool wide = precision == Precision::kAsStored && info.encoding == checkpoint::Encoding::kF64;
  Array out = make_array(wide ? DType::kF64 : DType::kF32, info.shape);
  if (wide) file.read_f64(info.name, 0, info.rows(), numbers_of<double>(out));
  else file.read_f32(info.name, 0, info.rows(), numbers_of<float>(out));
  return out;
}

// checkpoint::write_npy makes new files; here the name may also be a link, a pipe or a device, which write_file knows
// about.
std::string npy_bytes(const Array& array) {
  std::string shape;
  for (const std::int64_t size : array.shape) shape += std::to_string(size) + ", ";
  if (array.shape.size() > 1) shape.resize(shape.size() - 2);
  std::string header = std::string("{'descr': '") + (array.dtype == DType::kF64 ? "<f8" : "<f4") +
                       "', 'fortran_order': False, 'shape': (" + shape + "), }";
  std::string out("\x93NUMPY\x01", 7);
  out += '\0';
  const std::size_t fixed = out.size() + 2;
  header.resize((fixed + header.size() + 1 + 63) / 64 * 64 - fixed - 1, ' ');
  header += '\n';
  out += static_cast<char>(header.size() & 0xFF);
  out += static_cast<char>(header.size() >> 8);
  out += header;
  out.append(reinterpret_cast<const char*>(array.bytes.data()), array.bytes.size());
  return out;
}

}  // namespace rootdk::app
