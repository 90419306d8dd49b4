// What users call: tensors and metadata by name, rows as f32, f64 or i64, bytes as they lie in the file.
#include "rootdk/checkpoint/checkpoint.h"

#include <algorithm>
#include <limits>
#include <new>
#include <system_error>
#include <utility>

#include "base/memory_errors.h"
#include "checkpoint/assembly.h"
#include "checkpoint/decode.h"
#include "checkpoint/directory.h"
#include "checkpoint/rows.h"
#include "checkpoint/text.h"

namespace rootdk::checkpoint {

namespace {

constexpr std::uint64_t kMaxConfigBytes = std::uint64_t{1} << 24;

}  // namespace

Checkpoint::Checkpoint(std::shared_ptr<const Data> data) : data_(std::move(data)) {}

Checkpoint Checkpoint::open(const std::filesystem::path& path, const OpenOptions& options) {
  return base::with_memory_errors([&] { return Assembly::open(path, options, {}); });
}

Checkpoint Checkpoint::open(const std::filesystem::path& path, const OpenOptions& options,
                            std::vector<Elsewhere> elsewhere) {
  return base::with_memory_errors([&] { return Assembly::open(path, options, std::move(elsewhere)); });
}

Format Checkpoint::format() const { return data_->format; }
const std::vector<std::filesystem::path>& Checkpoint::files() const& { return data_->files; }
const std::vector<TensorInfo>& Checkpoint::tensors() const& { return data_->tensors; }
const TensorInfo* Checkpoint::find(std::string_view name) const& { return data_->find(name); }
const std::vector<MetadataEntry>& Checkpoint::metadata() const& { return data_->metadata; }

const TensorInfo& Checkpoint::at(std::string_view name) const& {
  const TensorInfo* const tensor = find(name);
  if (tensor == nullptr) refuse("tensor: the checkpoint has no {}", in_quotes(name));
  return *tensor;
}

const MetadataValue* Checkpoint::find_metadata(std::string_view key) const& {
  const auto& all = data_->metadata;
  const auto found = std::find_if(all.begin(), all.end(), [&](const MetadataEntry& entry) { return entry.key == key; });
  return found == all.end() ? nullptr : &found->value;
}

std::optional<std::string> Checkpoint::config() const {
  const std::string name = "config.json";
  std::error_code error;
  if (!data_->elsewhere.contains(name) &&
      !std::filesystem::exists(std::filesystem::symlink_status(data_->directory / name, error)))
    return {};
  return base::with_memory_errors([&]() -> std::optional<std::string> {
    const auto source = data_->file(name);
    if (source->size() > kMaxConfigBytes)
      refuse("{}: {} bytes, but at most {} are taken", source->name(), source->size(), kMaxConfigBytes);
    std::string text(source->size(), '\0');
    source->read(0, std::as_writable_bytes(std::span(text)));
    return text;
  });
}

// Memory for so many numbers, where there may be more than it has addresses.
template <class Number>
static std::vector<Number> room_for(std::int64_t count) {
  if (static_cast<std::uint64_t>(count) > std::numeric_limits<std::size_t>::max() / sizeof(Number))
    throw std::bad_alloc();
  return std::vector<Number>(static_cast<std::size_t>(count));
}

// `readable` says whether there are numbers of this kind.
template <class Data, class Out>
static void read_checked(const Data& data, const TensorInfo& tensor, bool readable, Rows rows, std::span<Out> out) {
  if (!readable)
    refuse("tensor {}: {} cannot be read as {}", in_quotes(tensor.name), traits(tensor.encoding).name,
           std::is_same_v<Out, std::int64_t> ? "whole numbers" : "numbers");
  if (rows.first < 0 || rows.count < 0 || rows.first > tensor.rows() || rows.count > tensor.rows() - rows.first)
    refuse("rows: {} from {} on, but tensor {} has {}", rows.count, rows.first, in_quotes(tensor.name), tensor.rows());
  if (std::uint64_t{out.size()} != static_cast<std::uint64_t>(rows.count * tensor.width()))
    refuse("out: {} values, but {} rows of {} are wanted", out.size(), rows.count, tensor.width());
  base::with_memory_errors([&] { read_rows(*data.sources[tensor.file], tensor, data.packing(tensor), rows, out); });
}

void Checkpoint::read_f32(std::string_view tensor, std::int64_t first_row, std::int64_t rows,
                          std::span<float> out) const {
  const TensorInfo& info = at(tensor);
  read_checked(*data_, info, traits(info.encoding).readable, {first_row, rows}, out);
}

void Checkpoint::read_f64(std::string_view tensor, std::int64_t first_row, std::int64_t rows,
                          std::span<double> out) const {
  const TensorInfo& info = at(tensor);
  read_checked(*data_, info, traits(info.encoding).readable, {first_row, rows}, out);
}

void Checkpoint::read_i64(std::string_view tensor, std::int64_t first_row, std::int64_t rows,
                          std::span<std::int64_t> out) const {
  const TensorInfo& info = at(tensor);
  read_checked(*data_, info, is_whole(info.encoding), {first_row, rows}, out);
}

std::vector<float> Checkpoint::read_f32(std::string_view tensor) const {
  return base::with_memory_errors([&] {
    const TensorInfo& info = at(tensor);
    std::vector<float> out = room_for<float>(info.rows() * info.width());
    read_f32(tensor, 0, info.rows(), out);
    return out;
  });
}

std::vector<double> Checkpoint::read_f64(std::string_view tensor) const {
  return base::with_memory_errors([&] {
    const TensorInfo& info = at(tensor);
    std::vector<double> out = room_for<double>(info.rows() * info.width());
    read_f64(tensor, 0, info.rows(), out);
    return out;
  });
}

std::span<const std::byte> Checkpoint::bytes(std::string_view tensor) const& {
  const TensorInfo& info = at(tensor);
  if (info.compressed) refuse("tensor {}: compressed, so it has no bytes to look at; read it", in_quotes(tensor));
  return data_->sources[info.file]->bytes(info.offset, info.bytes);
}

std::span<const std::byte> Checkpoint::bytes_of(std::string_view tensor, Encoding encoding,
                                                std::size_t alignment) const {
  const TensorInfo& info = at(tensor);
  if (info.encoding != encoding)
    refuse("tensor {}: {}, but {} is asked for", in_quotes(tensor), traits(info.encoding).name, traits(encoding).name);
  if (info.byte_order != ByteOrder::kLittle && alignment > 1)
    refuse("tensor {}: big-endian, so its numbers cannot be looked at in place; read them", in_quotes(tensor));
  const std::span<const std::byte> data = bytes(tensor);
  if (info.offset % alignment != 0 && !data.empty())
    refuse("tensor {}: at byte {} of its file, which is not a multiple of {}, so its numbers cannot be looked at in "
           "place; read "
           "them",
           in_quotes(tensor), info.offset, alignment);
  return data;
}

}  // namespace rootdk::checkpoint
