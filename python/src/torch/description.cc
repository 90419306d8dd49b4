// The two lists read from front to back, into a Problem.
#include "description.h"

#include <span>
#include <string>
#include <string_view>

#include "base/refuse.h"

namespace rootdk::torch_operators {

namespace {

using base::refuse;

constexpr std::int64_t kUnbounded = -1, kAbsent = -1;

/// Whole numbers, one after the other. What is left out at the end is as at first.
class Reader {
 public:
  explicit Reader(std::span<const std::int64_t> numbers) : rest_(numbers) {}

  std::int64_t next(std::int64_t at_first) { return rest_.empty() ? at_first : take(1)[0]; }

  std::span<const std::int64_t> take(std::int64_t count) {
    if (count < 0 || static_cast<std::uint64_t>(count) > rest_.size())
      refuse("numbers: {} are left, but {} are wanted; rootdk packs them itself", rest_.size(), count);
    const auto taken = rest_.first(static_cast<std::size_t>(count));
    rest_ = rest_.subspan(static_cast<std::size_t>(count));
    return taken;
  }

  /// How many, and those.
  std::optional<std::span<const std::int64_t>> listed() {
    const std::int64_t count = next(kAbsent);
    if (count == kAbsent) return {};
    return take(count);
  }

  std::int64_t left() const { return static_cast<std::int64_t>(rest_.size()); }

 private:
  std::span<const std::int64_t> rest_;
};

Diagonal diagonal_of(std::int64_t kind, std::int64_t offset) {
  switch (kind) {
    case 0: return Diagonal::bottom_right();
    case 1: return Diagonal::top_left();
    case 2: return Diagonal::last_key();
    case 3: return Diagonal::at(offset);
    default: refuse("diagonal: kind {}, but 0 to 3 is wanted", kind);
  }
}

void read_mask(Reader& reader, Mask& mask) {
  mask.causal = reader.next(0) != 0;
  const std::int64_t kind = reader.next(0), offset = reader.next(0);
  mask.diagonal = diagonal_of(kind, offset);
  const bool bounded = reader.next(0) != 0;
  const auto side = [](std::int64_t distance) { return distance == kUnbounded ? Window::kUnbounded : distance; };
  const std::int64_t left = side(reader.next(kUnbounded)), right = side(reader.next(kUnbounded));
  if (bounded) mask.window = Window{left, right};
  const std::int64_t items = reader.next(0);
  mask.key_starts = reader.listed().value_or(mask.key_starts);
  mask.key_lengths = reader.listed().value_or(mask.key_lengths);
  mask.query_lengths = reader.listed().value_or(mask.query_lengths);
  const auto q_starts = reader.listed(), kv_starts = reader.listed();
  if (q_starts && kv_starts) mask.documents = Documents{*q_starts, *kv_starts, items};
}

std::string text_of(std::span<const std::int64_t> characters) {
  std::string text;
  for (const std::int64_t c : characters) text += c > 0 && c < 128 ? static_cast<char>(c) : '?';
  return text;
}

std::vector<float> per_head(std::string_view name, const TorchTensor& values, std::int64_t heads) {
  if (values.dim() != 1 || values.size(0) != heads) {
    std::string shape;
    for (std::int64_t axis = 0; axis < values.dim(); ++axis)
      shape += (axis > 0 ? ", " : "") + std::to_string(values.size(axis));
    refuse("{}: shape is [{}], but one value for each of {} query heads is wanted", name, shape, heads);
  }
  std::int32_t dtype = 0;
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_dtype(values.get(), &dtype));
  if (dtype != aoti_torch_dtype_float32() || !values.is_cpu()) refuse("{}: float32 on the CPU is wanted", name);
  std::vector<float> out(static_cast<std::size_t>(heads));
  const void* data = nullptr;
  TORCH_ERROR_CODE_CHECK(torch_get_const_data_ptr(values.get(), &data));
  for (std::int64_t h = 0; h < heads; ++h)
    out[static_cast<std::size_t>(h)] = static_cast<const float*>(data)[h * values.stride(0)];
  return out;
}

std::uint64_t seed_of(const TorchTensor& seed) {
  std::int32_t dtype = 0;
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_dtype(seed.get(), &dtype));
  if (dtype != aoti_torch_dtype_int64() || seed.numel() != 1 || !seed.is_cpu())
    refuse("seed: {} elements, but one of torch.int64 on the CPU is wanted", seed.numel());
  const void* data = nullptr;
  TORCH_ERROR_CODE_CHECK(torch_get_const_data_ptr(seed.get(), &data));
  return static_cast<std::uint64_t>(*static_cast<const std::int64_t*>(data));
}

}  // namespace

Described::Described(const ProblemTensors& tensors, const Numbers& numbers, const Reals& reals, std::int64_t heads) {
  Problem& p = problem;
  p.stats = StatsLevel::kNone;
  if (numbers) {
    Reader reader(*numbers);
    p.dropout.seed = static_cast<std::uint64_t>(reader.next(0));
    read_mask(reader, p.mask);
    if (reader.left() > 0) p.scale = Scale::parse(text_of(reader.take(reader.left())));
  }
  if (reals) {
    constexpr std::size_t kFixed = 5;
    const std::vector<double>& r = *reals;
    if (r.size() < kFixed) refuse("reals: {}, but at least {} are wanted; rootdk packs them itself", r.size(), kFixed);
    if (r[0] != 0) p.scale = Scale::constant(r[1]);
    if (r[2] != 0) p.soft_cap = static_cast<float>(r[3]);
    p.dropout.p = static_cast<float>(r[4]);
    alibi_.assign(r.begin() + kFixed, r.end());
    p.mask.alibi_slopes = alibi_;
  }
  if (tensors.scale) {
    scale_ = per_head("scale", *tensors.scale, heads);
    p.scale = Scale::per_head(scale_);
  }
  if (tensors.sink) {
    sink_ = per_head("sink", *tensors.sink, heads);
    p.sink = sink_;
  }
  p.mask.allowed = view_of("mask", tensors.mask);
  p.mask.bias = view_of("bias", tensors.bias);
  if (tensors.seed) p.dropout.seed = seed_of(*tensors.seed);
}

}  // namespace rootdk::torch_operators
