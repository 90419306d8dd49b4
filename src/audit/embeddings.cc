// A sample of the vocabulary's rows, summed and normalised as the model does before its first layer.
#include "audit/embeddings.h"

#include "audit/parts.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

namespace rootdk::audit {

namespace {

// For queries, and again for keys. What they tell is off by a few percent of itself then, and by more for what
// embeddings are not.
constexpr std::int64_t kSample = 512;

// Every so many tokens of the vocabulary are looked at.
std::int64_t step_in(std::int64_t vocabulary) { return vocabulary <= 2 * kSample ? 1 : vocabulary / kSample; }

// y = (normalised x)·gain + bias, in place.
void apply_norm(std::span<float> x, theory::Norm::Kind kind, const std::vector<double>* gain, double gain_offset,
                const std::vector<double>* bias) {
  if (kind == theory::Norm::Kind::kNone) return;
  const auto width = static_cast<double>(x.size());
  double mean = 0, squares = 0;
  if (kind == theory::Norm::Kind::kLayer) mean = std::accumulate(x.begin(), x.end(), 0.0) / width;
  for (const float v : x) squares += (static_cast<double>(v) - mean) * (static_cast<double>(v) - mean);
  const double factor = squares > 0 ? std::sqrt(width / squares) : 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double z = (static_cast<double>(x[i]) - mean) * factor * (gain != nullptr ? (*gain)[i] + gain_offset : 1);
    x[i] = static_cast<float>(z + (bias != nullptr ? (*bias)[i] : 0));
  }
}

// Sums of what a token is made of, row by row of the sample.
class Reader {
 public:
  Reader(const checkpoint::Checkpoint& checkpoint, const Model& model)
      : checkpoint_(checkpoint), embedding_(model.embedding) {
    if (!embedding_.positions.empty()) {
      positions_ = checkpoint_.at(embedding_.positions).rows() - embedding_.first_position;
      for (const Attention& a : model.layers) positions_ = std::min(positions_, a.context);
    }
    if (!embedding_.token_types.empty()) type_ = row_of(embedding_.token_types, 0);
  }

  /// Token `index` of the vocabulary at a position that goes through all of them evenly (steps of the golden ratio),
  /// whatever order tokens are in.
  void read(std::int64_t index, std::span<float> into) {
    checkpoint_.read_f32(embedding_.tokens, index, 1, into);
    for (float& x : into) x *= static_cast<float>(embedding_.factor);
    if (positions_ > 0) {
      const double turn = static_cast<double>(taken_++) * 0.6180339887498949;
      const auto at = static_cast<std::int64_t>((turn - std::floor(turn)) * static_cast<double>(positions_));
      add(row_of(embedding_.positions, embedding_.first_position + at), into);
    }
    if (!type_.empty()) add(type_, into);
  }

 private:
  std::vector<float> row_of(const std::string& tensor, std::int64_t row) const {
    std::vector<float> out(static_cast<std::size_t>(embedding_.width));
    checkpoint_.read_f32(tensor, row, 1, out);
    return out;
  }
  static void add(const std::vector<float>& x, std::span<float> into) {
    for (std::size_t i = 0; i < into.size(); ++i) into[i] += x[i];
  }

  const checkpoint::Checkpoint& checkpoint_;
  const Embedding& embedding_;
  std::int64_t positions_ = 0, taken_ = 0;
  std::vector<float> type_;
};

bool is_finite(std::span<const float> x) {
  return std::all_of(x.begin(), x.end(), [](float v) { return std::isfinite(v); });
}

// Tokens that are all zero (padding) or not finite say nothing of inputs.
std::optional<Tokens> sample(Reader& reader, const Embedding& embedding, std::int64_t first, std::int64_t step) {
  Tokens out((embedding.vocabulary - first + step - 1) / step, embedding.width);
  std::int64_t kept = 0;
  for (std::int64_t token = first; token < embedding.vocabulary; token += step) {
    const std::span<float> row = out.row(kept);
    reader.read(token, row);
    kept += is_finite(row) && std::any_of(row.begin(), row.end(), [](float v) { return v != 0; });
  }
  if (kept < 2) return {};
  out.count = kept;
  out.values.resize(static_cast<std::size_t>(kept * out.stride));
  return out;
}

}  // namespace

std::int64_t Embeddings::sampled(const Model& model) {
  const std::int64_t step = step_in(model.embedding.vocabulary);
  return model.embedding.known() ? (model.embedding.vocabulary + step - 1) / step : 0;
}

std::vector<Extent> reads_of_embeddings(const checkpoint::Checkpoint& checkpoint, const Model& model) {
  const Embedding& embedding = model.embedding;
  std::vector<Extent> out;
  if (!embedding.known()) return out;
  const checkpoint::TensorInfo& tokens = checkpoint.at(embedding.tokens);
  if (const std::int64_t step = step_in(embedding.vocabulary);
      step == 1 || tokens.compressed || tokens.order != checkpoint::Order::kRowMajor) {
    add_tensor(checkpoint, embedding.tokens, out);
  } else {
    const std::uint64_t row = tokens.bytes / static_cast<std::uint64_t>(tokens.rows());
    for (const std::int64_t first : {std::int64_t{0}, step / 2})
      for (std::int64_t token = first; token < embedding.vocabulary; token += step)
        out.push_back({tokens.file, tokens.offset + static_cast<std::uint64_t>(token) * row, row});
  }
  for (const std::string& tensor :
       {embedding.positions, embedding.token_types, embedding.norm.gain, embedding.norm.bias})
    add_tensor(checkpoint, tensor, out);
  return united(std::move(out));
}

Embeddings::Embeddings(const checkpoint::Checkpoint& checkpoint, const Model& model) : own_norm_(model.embedding.norm) {
  const Embedding& embedding = model.embedding;
  if (!embedding.known()) return;
  Reader reader(checkpoint, model);
  const std::int64_t step = step_in(embedding.vocabulary);
  const bool all = step == 1;
  std::optional<Tokens> queries = sample(reader, embedding, 0, step);
  std::optional<Tokens> keys = all ? queries : sample(reader, embedding, step / 2, step);
  if (!queries || !keys) return;
  plain_ = EmbeddedInputs{std::move(*queries), std::move(*keys)};
  normed_ = plain_;
  if (own_norm_.kind == theory::Norm::Kind::kNone) return;
  const auto read = [&](const std::string& tensor) {
    return tensor.empty() ? std::vector<double>() : checkpoint.read_f64(tensor);
  };
  const std::vector<double> gain = read(own_norm_.gain), bias = read(own_norm_.bias);
  for (Tokens* tokens : {&normed_->queries, &normed_->keys})
    for (std::int64_t t = 0; t < tokens->count; ++t)
      apply_norm(tokens->row(t), own_norm_.kind, gain.empty() ? nullptr : &gain, own_norm_.gain_offset,
                 bias.empty() ? nullptr : &bias);
}

Tokens Embeddings::normalised(const Tokens& tokens, const NormPlace& norm, const LayerWeights& weights) const {
  Tokens out = tokens;
  const std::vector<double>* const gain = norm.gain.empty() ? nullptr : &weights.vector(norm.gain);
  const std::vector<double>* const bias = norm.bias.empty() ? nullptr : &weights.vector(norm.bias);
  for (std::int64_t t = 0; t < out.count; ++t) apply_norm(out.row(t), norm.kind, gain, norm.gain_offset, bias);
  return out;
}

std::optional<EmbeddedInputs> Embeddings::of(const LayerWeights& weights, const Attention& a) const {
  if (!plain_ || a.kind == "cross" || a.q.size() != 1 || a.k.size() != 1 || a.q[0].norm.gain != a.k[0].norm.gain)
    return {};
  if (a.q[0].width != plain_->queries.width || a.k[0].width != plain_->keys.width) return {};
  // In a post-norm model the first layer's norm is the embedding's own: it is applied once.
  const NormPlace& norm = a.q[0].norm;
  const bool own = own_norm_.kind != theory::Norm::Kind::kNone && norm.gain == own_norm_.gain;
  const EmbeddedInputs& from = own ? *plain_ : *normed_;
  return EmbeddedInputs{normalised(from.queries, norm, weights), normalised(from.keys, norm, weights)};
}

}  // namespace rootdk::audit
