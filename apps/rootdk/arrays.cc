// .npy through checkpoint's reader into memory of f32 or f64, and headers written for what goes out.
#include "arrays.h"

#include <algorithm>
#include <bit>
#include <span>
#include <system_error>

#include "base/refuse.h"

namespace rootdk::app {

using base::refuse;

namespace {

static_assert(std::endian::native == std::endian::little, "arrays are written as they lie in memory");

template <class T>
std::span<T> numbers_of(Array& array) {
  return {reinterpret_cast<T*>(array.bytes.data()), array.bytes.size() / sizeof(T)};
}

checkpoint::Checkpoint open_npy(const std::filesystem::path& path) {
  std::error_code error;
  if (std::filesystem::is_directory(path, error)) refuse("{}: is a folder, but a .npy file is wanted", path.string());
  checkpoint::Checkpoint file = checkpoint::Checkpoint::open(path);
  if (file.format() != checkpoint::Format::kNpy) refuse("{}: is not a .npy file", path.string());
  return file;
}

ConstTensor view_of(const std::string& name, const void* data, DType dtype, const std::vector<std::int64_t>& shape) {
  if (shape.size() < 2 || shape.size() > 4)
    refuse("{}: {} ax{}s, but 2 to 4 are wanted: [[[batch,] heads,] length, dim]", name, shape.size(),
           shape.size() == 1 ? "i" : "e");
  Extents extents = {1, 1, 1, 1};
  std::copy(shape.rbegin(), shape.rend(), extents.rbegin());
  return {data, dtype, Device::kCpu, extents, row_major(extents)};
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

ConstTensor Array::view(const std::string& name) const { return view_of(name, bytes.data(), dtype, shape); }

Array make_array(DType dtype, std::vector<std::int64_t> shape) {
  Array out{dtype, std::move(shape), {}};
  out.bytes.resize(static_cast<std::size_t>(out.count() * size_of(dtype)));
  return out;
}

ArrayFile::ArrayFile(const std::filesystem::path& path, Precision precision) : file_(open_npy(path)) {
  if (precision == Precision::kAsStored && info().encoding == checkpoint::Encoding::kF64) dtype_ = DType::kF64;
}

double ArrayFile::bytes() const {
  return static_cast<double>(info().rows()) * static_cast<double>(info().width()) *
         static_cast<double>(size_of(dtype_));
}

Array ArrayFile::read() const {
  Array out = make_array(dtype_, info().shape);
  if (dtype_ == DType::kF64) file_.read_f64(info().name, 0, info().rows(), numbers_of<double>(out));
  else file_.read_f32(info().name, 0, info().rows(), numbers_of<float>(out));
  return out;
}

ConstTensor ArrayFile::view(const std::string& name) const {
  static constexpr std::byte kNowhere = {};
  return view_of(name, &kNowhere, dtype_, info().shape);
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
