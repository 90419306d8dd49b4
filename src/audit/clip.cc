// γ per head, then gains or weights multiplied in copies of their tensors, then the file written anew.
#include "rootdk/audit/clip.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <set>
#include <system_error>
#include <utility>

#include "audit/json.h"
#include "base/free_memory.h"
#include "base/memory_errors.h"
#include "base/refuse.h"
#include "rootdk/checkpoint/safetensors.h"
#include "rootdk/tensor.h"

namespace rootdk::audit {

using base::refuse;
using checkpoint::Checkpoint;
using checkpoint::Encoding;
using checkpoint::TensorInfo;

namespace {

// A number as the file has it, multiplied; `offset` is what its user adds to it first.
template <class T>
double value_of(T x) {
  if constexpr (std::is_same_v<T, Float16> || std::is_same_v<T, BFloat16>) return static_cast<double>(to_float(x));
  else return static_cast<double>(x);
}
template <class T>
T stored(double x) {
  if constexpr (std::is_same_v<T, Float16>) return to_float16(x);
  else if constexpr (std::is_same_v<T, BFloat16>) return to_bfloat16(x);
  else return static_cast<T>(x);
}

template <class T>
void multiply(std::byte* at, std::int64_t count, double factor, double offset) {
  for (std::int64_t i = 0; i < count; ++i, at += sizeof(T)) {
    T x;
    std::memcpy(&x, at, sizeof(T));
    x = stored<T>((value_of(x) + offset) * factor - offset);
    std::memcpy(at, &x, sizeof(T));
  }
}

// Copies of the tensors that change.
class Changes {
 public:
  explicit Changes(const Checkpoint& file) : file_(file) {}

  /// Values first … first + count − 1 of the tensor, as they lie.
  void scale(const std::string& tensor, std::int64_t first, std::int64_t count, double factor, double offset = 0) {
    const TensorInfo& info = file_.at(tensor);
    const auto [place, fresh] = bytes_.try_emplace(tensor);
    if (fresh) {
      const auto original = file_.bytes(tensor);
      place->second.assign(original.begin(), original.end());
    }
    std::byte* const at = place->second.data() + first * checkpoint::traits(info.encoding).block_bytes;
    switch (info.encoding) {
      case Encoding::kF64: return multiply<double>(at, count, factor, offset);
      case Encoding::kF32: return multiply<float>(at, count, factor, offset);
      case Encoding::kF16: return multiply<Float16>(at, count, factor, offset);
      case Encoding::kBF16: return multiply<BFloat16>(at, count, factor, offset);
      default:
        refuse("{}: {} numbers cannot be changed one by one", in_quotes(tensor),
               checkpoint::traits(info.encoding).name);
    }
  }

  const std::map<std::string, std::vector<std::byte>>& bytes() const { return bytes_; }

 private:
  const Checkpoint& file_;
  std::map<std::string, std::vector<std::byte>> bytes_;
};

void scale_part(Changes& changes, const Checkpoint& file, const Part& part, std::int64_t head, double factor) {
  if (factor == 1) return;
  const std::int64_t first = part.row_of(head);
  if (part.transposed) {
    const std::int64_t columns = file.at(part.weight).shape[1];
    for (std::int64_t i = 0; i < part.width; ++i) changes.scale(part.weight, i * columns + first, part.rows, factor);
  } else {
    changes.scale(part.weight, first * part.width, part.rows * part.width, factor);
  }
  if (!part.bias.empty()) changes.scale(part.bias, first, part.rows, factor);
}

// Keys that one head alone reads can take their half; those that several read cannot, nor those made of a part that all
// heads share.
bool keys_are_its_own(const Attention& a) { return a.heads_q == a.heads_kv && a.k.size() == 1; }

// All heads of a layer pass through the same gain, so the smallest γ decides.
void clip_gains(Changes& changes, const Attention& a, std::vector<ClippedHead>& heads) {
  double smallest = 1;
  for (const ClippedHead& head : heads) smallest = std::min(smallest, head.gamma);
  if (a.q_norm.gain.empty()) refuse("layer {}: its QK-norm has no gain to shrink", a.layer);
  changes.scale(a.q_norm.gain, 0, a.dim_qk, smallest, a.q_norm.gain_offset);
  for (ClippedHead& head : heads) head.on_queries = smallest;
}

void clip_weights(Changes& changes, const Checkpoint& file, const Attention& a, std::vector<ClippedHead>& heads) {
  for (ClippedHead& head : heads) {
    const bool both = keys_are_its_own(a);
    head.on_queries = both ? std::sqrt(head.gamma) : head.gamma;
    head.on_keys = both ? head.on_queries : 1;
    for (const Part& part : a.q) scale_part(changes, file, part, head.observed.head, head.on_queries);
    if (both) scale_part(changes, file, a.k.front(), head.observed.head, head.on_keys);
  }
}

// Copies of the tensors that may change.
std::int64_t bytes_of_changes(const Checkpoint& file,
                              const std::map<const Attention*, std::vector<ClippedHead>>& by_layer) {
  std::set<std::string> tensors;
  for (const auto& [a, heads] : by_layer) {
    if (a->q_norm.kind != theory::Norm::Kind::kNone) continue;  // gains are small
    for (const Part& part : a->q) tensors.insert(part.weight);
    if (keys_are_its_own(*a)) tensors.insert(a->k.front().weight);
  }
  double bytes = 0;
  for (const std::string& tensor : tensors) bytes += static_cast<double>(file.at(tensor).bytes);
  return base::saturated(bytes);
}

const Attention& layer_of(const Model& model, const Observed& o) {
  for (const Attention& a : model.layers)
    if (a.kind == o.kind && a.layer == o.layer) {
      if (o.head < 0 || o.head >= a.heads_q)
        refuse("max scores: head {} of layer {}, which has {}", o.head, o.layer, a.heads_q);
      return a;
    }
  refuse("max scores: {} layer {}, which the model does not have", o.kind, o.layer);
}

void write(const Checkpoint& file, const Changes& changes, const std::filesystem::path& out) {
  std::error_code error;
  for (const std::filesystem::path& original : file.files())
    if (std::filesystem::equivalent(original, out, error))
      refuse("out: {} is the original, which is never changed", in_quotes(out.string()));
  std::vector<checkpoint::NewTensor> tensors;
  for (const TensorInfo& info : file.tensors()) {
    const auto changed = changes.bytes().find(info.name);
    const std::span<const std::byte> data =
        changed != changes.bytes().end() ? std::span<const std::byte>(changed->second) : file.bytes(info.name);
    tensors.push_back({info.name, info.encoding, info.shape, data});
  }
  std::map<std::string, std::string> metadata;
  for (const checkpoint::MetadataEntry& entry : file.metadata())
    if (const std::string* text = entry.value.text()) metadata[entry.key] = *text;
  checkpoint::write_safetensors(out, tensors, metadata);
}

}  // namespace

Clipped clip_checkpoint(const Checkpoint& file, const Model& model, std::span<const Observed> observed,
                        const Clip& clip, const std::filesystem::path& out) {
  return base::with_memory_errors([&] {
    if (!(clip.threshold > 0) || !std::isfinite(clip.threshold))
      refuse("QK-clip: a threshold of {}, but a number above 0 is wanted", clip.threshold);
    if (file.format() != checkpoint::Format::kSafetensors)
      refuse("{}: only safetensors can be corrected", in_quotes(file.files().front().string()));
    std::map<const Attention*, std::vector<ClippedHead>> by_layer;
    for (const Observed& o : observed) {
      const Attention& a = layer_of(model, o);
      if (!std::isfinite(o.largest_raw))
        refuse("max scores: head {} of layer {} has {}, but a finite number is wanted", o.head, o.layer, o.largest_raw);
      std::vector<ClippedHead>& heads = by_layer[&a];
      if (std::any_of(heads.begin(), heads.end(), [&](const ClippedHead& h) { return h.observed.head == o.head; }))
        refuse("max scores: head {} of layer {} comes twice", o.head, o.layer);
      heads.push_back({o, o.largest_raw > clip.threshold ? clip.threshold / o.largest_raw : 1, 1, 1});
    }
    for (auto& [a, heads] : by_layer) std::erase_if(heads, [](const ClippedHead& h) { return h.gamma == 1; });
    std::erase_if(by_layer, [](const auto& layer) { return layer.second.empty(); });
    want_memory({bytes_of_changes(file, by_layer), 1, {}, {}});
    Clipped result;
    Changes changes(file);
    for (const Attention& a : model.layers) {
      const auto found = by_layer.find(&a);
      if (found == by_layer.end()) continue;
      std::vector<ClippedHead>& heads = found->second;
      if (a.q_norm.kind != theory::Norm::Kind::kNone) clip_gains(changes, a, heads);
      else clip_weights(changes, file, a, heads);
      result.heads.insert(result.heads.end(), heads.begin(), heads.end());
    }
    for (const auto& [tensor, bytes] : changes.bytes()) result.tensors.push_back(tensor);
    if (!clip.dry_run) write(file, changes, out);
    return result;
  });
}

std::vector<Observed> observed_in(const Audit& audit) {
  std::vector<Observed> out;
  std::vector<std::string> not_finite;
  for (const Layer& layer : audit.layers)
    for (const Head& head : layer.heads) {
      if (head.not_finite > 0 || (head.measured && !std::isfinite(head.measured->largest_raw)))
        not_finite.push_back(fmt::format("head {} of layer {}", head.head, layer.attention.layer));
      if (head.measured)
        out.push_back({layer.attention.kind, layer.attention.layer, head.head, head.measured->largest_raw});
    }
  if (!not_finite.empty())
    refuse("QK-clip: {}{} not finite, and no factor mends that; an audit without QK-clip says more", not_finite.front(),
           not_finite.size() == 1 ? " is" : fmt::format(" and {} more are", not_finite.size() - 1));
  if (out.empty()) refuse("max scores: none were observed; the audit had no inputs");
  return out;
}

std::vector<Observed> observed_from_json(std::string_view text, const Model& model) {
  const Json tree = parse_json(text, "max scores");
  if (model.layers.empty()) refuse("max scores: the model has no layers");
  const bool plain = tree.is_array();
  if (!plain && !(tree.is_object() && tree.contains("layers") && tree["layers"].is_array()))
    refuse("max scores: {}, but an array for each layer, or an object with \"layers\", is wanted", in_short(tree));
  std::vector<Observed> out;
  std::int64_t next = 0;
  for (const Json& one : plain ? tree : tree["layers"]) {
    Observed o;
    o.kind = model.layers.front().kind;
    o.layer = next++;
    const Json* scores = &one;
    if (!plain) {
      if (!one.is_object() || !one.contains("max_raw")) refuse("max scores: layers[{}] has no \"max_raw\"", o.layer);
      scores = &one["max_raw"];
      if (one.contains("layer")) {
        if (!one["layer"].is_number_integer())
          refuse("max scores: layers[{}].layer is {}", o.layer, in_short(one["layer"]));
        o.layer = one["layer"].get<std::int64_t>();
      }
      if (one.contains("kind")) {
        const auto* kind = one["kind"].get_ptr<const std::string*>();
        if (kind == nullptr) refuse("max scores: layers[{}].kind is {}", o.layer, in_short(one["kind"]));
        o.kind = *kind;
      }
    }
    o.head = 0;
    const Attention& a = layer_of(model, o);
    if (!scores->is_array() || static_cast<std::int64_t>(scores->size()) != a.heads_q)
      refuse("max scores: layer {} has {}, but {} numbers, one for each head, are wanted", o.layer,
             scores->is_array() ? fmt::format("{} elements", scores->size()) : in_short(*scores), a.heads_q);
    for (const Json& score : *scores) {
      if (!score.is_number() && !score.is_null())
        refuse("max scores: head {} of layer {} is {}, but a number or null is wanted", o.head, o.layer,
               in_short(score));
      if (score.is_number()) {
        o.largest_raw = score.get<double>();
        out.push_back(o);
      }
      ++o.head;
    }
  }
  return out;
}

}  // namespace rootdk::audit
