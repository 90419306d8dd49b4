// A Problem from the tensors of an operator and its two lists of numbers.
#include "described.h"

#include <span>
#include <string>
#include <string_view>

#include "../description.h"
#include "base/refuse.h"

namespace rootdk::torch_operators {

namespace {

using base::refuse;

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
  const auto whole = numbers ? std::span<const std::int64_t>(*numbers) : std::span<const std::int64_t>();
  const auto real = reals ? std::span<const double>(*reals) : std::span<const double>();
  python::read_description(whole, real, p, slopes_);
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
