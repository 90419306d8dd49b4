// What of a file a layer needs; and findings as bytes, field by field, the same list for writing and for reading.
#include "audit/parts.h"

#include <algorithm>
#include <cstring>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>

#include "base/memory_errors.h"
#include "base/refuse.h"

namespace rootdk::audit {

using base::refuse;

std::vector<Extent> united(std::vector<Extent> extents) {
  std::sort(extents.begin(), extents.end(), [](const Extent& a, const Extent& b) {
    return std::tie(a.file, a.offset, a.bytes) < std::tie(b.file, b.offset, b.bytes);
  });
  std::vector<Extent> out;
  for (const Extent& extent : extents) {
    if (extent.bytes == 0) continue;
    if (out.empty() || out.back().file != extent.file || out.back().offset + out.back().bytes < extent.offset)
      out.push_back(extent);
    else out.back().bytes = std::max(out.back().bytes, extent.offset + extent.bytes - out.back().offset);
  }
  return out;
}

void add_tensor(const checkpoint::Checkpoint& checkpoint, const std::string& tensor, std::vector<Extent>& into) {
  if (tensor.empty()) return;
  const checkpoint::TensorInfo& info = checkpoint.at(tensor);
  into.push_back({info.file, info.offset, info.bytes});
}

std::vector<Extent> reads_of(const checkpoint::Checkpoint& checkpoint, const Model& model,
                             std::span<const std::size_t> layers) {
  return base::with_memory_errors([&] {
    std::vector<Extent> out;
    for (const std::size_t layer : layers) {
      const Attention& a = model.layers.at(layer);
      for (const auto* side : {&a.q, &a.k})
        for (const Part& part : *side)
          for (const std::string& tensor : {part.weight, part.bias, part.norm.gain, part.norm.bias})
            add_tensor(checkpoint, tensor, out);
      for (const NormPlace* norm : {&a.q_norm, &a.k_norm})
        for (const std::string& tensor : {norm->gain, norm->bias}) add_tensor(checkpoint, tensor, out);
    }
    return united(std::move(out));
  });
}

namespace {

// Of the bytes of this version, on a machine of this byte order.
constexpr std::uint64_t kPackedAudit = 0x31'7564'7561'6b64;

class PartWriter {
 public:
  template <class T>
  void operator()(const T& value) {
    static_assert(std::is_arithmetic_v<T> || std::is_enum_v<T>);
    const auto* const begin = reinterpret_cast<const std::byte*>(&value);
    bytes.insert(bytes.end(), begin, begin + sizeof(T));
  }
  void operator()(const std::string& text) {
    list(text, [&](char c) { (*this)(c); });
  }
  template <class T, class Each>
  void list(const T& values, const Each& each) {
    (*this)(static_cast<std::uint64_t>(values.size()));
    for (const auto& value : values) each(value);
  }
  template <class T, class Each>
  void maybe(const std::optional<T>& value, const Each& each) {
    (*this)(value.has_value());
    if (value) each(*value);
  }

  std::vector<std::byte> bytes;
};

class PartReader {
 public:
  explicit PartReader(std::span<const std::byte> bytes) : bytes_(bytes) {}

  template <class T>
  void operator()(T& value) {
    static_assert(std::is_arithmetic_v<T> || std::is_enum_v<T>);
    if (bytes_.size() < sizeof(T)) refuse("parts: one of them ends early");
    std::memcpy(&value, bytes_.data(), sizeof(T));
    bytes_ = bytes_.subspan(sizeof(T));
  }
  void operator()(bool& value) {
    std::uint8_t byte = 0;
    (*this)(byte);
    value = byte != 0;
  }
  void operator()(std::string& text) {
    list(text, [&](char& c) { (*this)(c); });
  }
  template <class T, class Each>
  void list(T& values, const Each& each) {
    std::uint64_t count = 0;
    (*this)(count);
    if (count > bytes_.size()) refuse("parts: one of them has {} values, but {} bytes", count, bytes_.size());
    values.resize(static_cast<std::size_t>(count));
    for (auto& value : values) each(value);
  }
  template <class T, class Each>
  void maybe(std::optional<T>& value, const Each& each) {
    bool has = false;
    (*this)(has);
    value.reset();
    if (has) each(value.emplace());
  }
  bool at_end() const { return bytes_.empty(); }

 private:
  std::span<const std::byte> bytes_;
};

template <class Archive, class... T>
void put(Archive& archive, T&... fields) {
  (archive(fields), ...);
}

template <class Archive, class Inputs>
void put_inputs(Archive& a, Inputs& on) {
  put(a, on.variance, on.sigma, on.unit_divisor, on.ratio, on.sigma_over_isotropic);
}

template <class Archive, class Judged>
void put_judgement(Archive& a, Judged& j) {
  put(a, j.verdict, j.ground, j.keys, j.sigma, j.sigma_c, j.entropy, j.predicted_entropy, j.stein_ratio, j.rounding,
      j.unit_variance_factor, j.divisor, j.divisor_over_sqrt_dk, j.words, j.fix);
  a.list(j.codes, [&](auto& code) { a(code); });
}

template <class Archive, class One>
void put_head(Archive& a, One& head) {
  put(a, head.head, head.kv_head, head.d_k, head.not_finite, head.overflows, head.mean, head.variance,
      head.variance_in_context, head.unit_divisor, head.ratio, head.scale, head.sigma, head.bound, head.f16_headroom,
      head.bf16_rounding, head.sigma_q, head.sigma_k, head.key_mean_norm, head.alignment, head.largest_singular_value,
      head.effective_rank);
  a.list(head.spectrum, [&](auto& x) { a(x); });
  a.list(head.curve, [&](auto& at) { put(a, at.distance, at.mean, at.variance); });
  a.list(head.contexts, [&](auto& at) {
    put(a, at.context, at.keys, at.sigma_over_critical, at.entropy, at.participation, at.p_max, at.verdict);
  });
  put_judgement(a, head.judgement);
  a.maybe(head.on_embeddings, [&](auto& on) { put_inputs(a, on); });
  a.maybe(head.measured, [&](auto& m) {
    put_inputs(a, m);
    put(a, m.largest_score, m.largest_raw, m.clip_factor, m.score_sigma, m.keys, m.entropy, m.participation, m.p_max,
        m.trace_j);
  });
}

}  // namespace

std::vector<std::byte> packed(const Audit& part, std::span<const std::size_t> layers) {
  return base::with_memory_errors([&] {
    if (part.layers.size() > layers.size())
      refuse("layers: {}, but findings are of {}", layers.size(), part.layers.size());
    PartWriter out;
    out(kPackedAudit);
    out(static_cast<std::uint64_t>(part.layers.size()));
    for (std::size_t i = 0; i < part.layers.size(); ++i) {
      out(static_cast<std::uint64_t>(layers[i]));
      out.list(part.layers[i].heads, [&](const Head& head) { put_head(out, head); });
    }
    return std::move(out.bytes);
  });
}

Audit joined(const Model& model, const Options& options, std::span<const std::span<const std::byte>> parts) {
  return base::with_memory_errors([&] {
    Audit out;
    out.model = model;
    set_contexts(model, options, out);
    for (const Attention& attention : model.layers) out.layers.push_back({attention, {}});
    for (const std::span<const std::byte> bytes : parts) {
      PartReader in(bytes);
      std::uint64_t mark = 0, layers = 0;
      in(mark);
      if (mark != kPackedAudit) refuse("parts: one of them is not what this version packs");
      for (in(layers); layers > 0; --layers) {
        std::uint64_t at = 0;
        in(at);
        if (at >= out.layers.size()) refuse("parts: of layer {}, but there are {}", at, out.layers.size());
        Layer& layer = out.layers[static_cast<std::size_t>(at)];
        if (!layer.heads.empty()) refuse("parts: layer {} is in two of them", at);
        in.list(layer.heads, [&](Head& head) { put_head(in, head); });
        if (layer.heads.size() != static_cast<std::size_t>(layer.attention.heads_q))
          refuse("parts: {} heads of layer {}, but it has {}", layer.heads.size(), at, layer.attention.heads_q);
      }
      if (!in.at_end()) refuse("parts: more than findings is in one of them");
    }
    for (std::size_t i = 0; i < out.layers.size(); ++i)
      if (out.layers[i].heads.empty()) refuse("parts: layer {} is in none of them", i);
    return out;
  });
}

}  // namespace rootdk::audit
