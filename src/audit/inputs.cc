// One .npy for each layer in a folder, or one array for all; held against the model's widths, read when asked for.
#include "audit/inputs.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "audit/json.h"
#include "base/refuse.h"

namespace rootdk::audit {

using base::refuse;
using checkpoint::Checkpoint;
using checkpoint::TensorInfo;

namespace {

constexpr std::int64_t kMostTokens = 1 << 20;

const TensorInfo& array_in(const Checkpoint& file) {
  if (file.format() != checkpoint::Format::kNpy || file.tensors().size() != 1)
    refuse("inputs: {} is not an .npy", in_quotes(file.files().front().string()));
  return file.tensors().front();
}

Tokens read(const Checkpoint& file, std::int64_t first, std::int64_t count) {
  const TensorInfo& array = array_in(file);
  std::vector<float> packed(static_cast<std::size_t>(count * array.width()));
  file.read_f32(array.name, first, count, packed);
  const auto bad = std::find_if(packed.begin(), packed.end(), [](float x) { return !std::isfinite(x); });
  if (bad != packed.end()) refuse("inputs: {} has a {}", in_quotes(file.files().front().string()), *bad);
  Tokens out(count, array.width());
  for (std::int64_t t = 0; t < count; ++t) std::copy_n(packed.data() + t * out.width, out.width, out.row(t).data());
  return out;
}

void check(const Checkpoint& file, std::int64_t tokens, std::int64_t width, std::int64_t wanted) {
  const std::string name = in_quotes(file.files().front().string());
  if (width != wanted) refuse("inputs: {} has {} numbers a token, but the projections take {}", name, width, wanted);
  if (tokens < 2 || tokens > kMostTokens)
    refuse("inputs: {} has {} tokens, but 2 to {} are wanted", name, tokens, kMostTokens);
}

}  // namespace

Inputs::Inputs(const std::filesystem::path& path, const Model& model) : path_(path) {
  if (model.layers.empty()) return;
  kind_ = model.layers.front().kind;
  std::error_code error;
  is_directory_ = std::filesystem::is_directory(path, error);
  if (is_directory_) {
    if (std::none_of(model.layers.begin(), model.layers.end(), [&](const Attention& a) { return tokens_of(a) > 0; }))
      refuse("inputs: {} has no {}.npy, nor those of other layers", in_quotes(path.string()),
             model.layers.front().layer);
    return;
  }
  file_ = Checkpoint::open(path);
  const TensorInfo& array = array_in(*file_);
  if (array.shape.size() != 2 && array.shape.size() != 3)
    refuse("inputs: {} is [{}], but [tokens, width] or [layers, tokens, width] is wanted", in_quotes(path.string()),
           fmt::join(array.shape, ", "));
  const auto layers =
      std::count_if(model.layers.begin(), model.layers.end(), [&](const Attention& a) { return a.kind == kind_; });
  if (array.shape.size() == 3 && array.shape[0] != layers)
    refuse("inputs: {} is [{}], but the model has {} layers", in_quotes(path.string()), fmt::join(array.shape, ", "),
           layers);
}

std::optional<Inputs::Place> Inputs::find(const Attention& a) const {
  if (a.kind == "cross" || a.k.size() != 1 || a.q.size() != 1 || a.q[0].norm.gain != a.k[0].norm.gain) return {};
  const std::int64_t width = a.q[0].width;
  if (!is_directory_) {
    if (a.kind != kind_ || !file_) return {};
    const TensorInfo& array = array_in(*file_);
    const bool by_layer = array.shape.size() == 3;
    const std::int64_t tokens = array.shape[by_layer ? 1 : 0];
    check(*file_, tokens, array.width(), width);
    return Place{*file_, by_layer ? a.layer * tokens : 0, tokens};
  }
  std::vector<std::string> names = {fmt::format("{}.{}.npy", a.kind, a.layer)};
  if (a.kind == kind_) names.push_back(fmt::format("{}.npy", a.layer));
  for (const std::string& name : names) {
    std::error_code error;
    if (!std::filesystem::exists(path_ / name, error)) continue;
    Checkpoint file = Checkpoint::open(path_ / name);
    const TensorInfo& array = array_in(file);
    const std::int64_t tokens = array.rows();  // of several sequences: one behind the other
    check(file, tokens, array.width(), width);
    return Place{std::move(file), 0, tokens};
  }
  return {};
}

std::int64_t Inputs::tokens_of(const Attention& a) const {
  const std::optional<Place> place = find(a);
  return place ? place->count : 0;
}

std::optional<Tokens> Inputs::of(const Attention& a) const {
  const std::optional<Place> place = find(a);
  return place ? std::optional(read(place->file, place->first, place->count)) : std::nullopt;
}

}  // namespace rootdk::audit
