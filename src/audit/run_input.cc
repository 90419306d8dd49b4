// What a model is to be run on: read, and checked against the model.
#include "audit/run_input.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <span>

#include "audit/json.h"
#include "base/free_memory.h"
#include "base/memory_errors.h"
#include "base/philox.h"
#include "base/refuse.h"

namespace rootdk::audit {

using base::refuse;
using checkpoint::Checkpoint;
using checkpoint::Encoding;
using checkpoint::TensorInfo;

namespace {

constexpr std::int64_t kMostRunTokens = 1 << 20, kRandomLength = 256;

bool is_whole(Encoding encoding) { return encoding >= Encoding::kI64 && encoding <= Encoding::kU8; }

// The only array of an .npy; `name` is what messages call the argument.
std::pair<Checkpoint, TensorInfo> array_at(const char* name, const std::filesystem::path& path) {
  Checkpoint file = Checkpoint::open(path);
  if (file.format() != checkpoint::Format::kNpy || file.tensors().size() != 1)
    refuse("{}: {} is not an .npy", name, in_quotes(path.string()));
  TensorInfo array = file.tensors().front();
  return {std::move(file), std::move(array)};
}

void check_count(const char* name, std::int64_t sequences, std::int64_t length) {
  if (sequences < 1) refuse("{}: no sequence", name);
  if (length < 2) refuse("{}: {} in a sequence, but at least 2 are wanted", name, length);
  if (length > kMostRunTokens || sequences > kMostRunTokens / length)
    refuse("{}: {} sequences of {}, but at most {} in all are taken", name, sequences, length, kMostRunTokens);
}

}  // namespace

RunInput read_tokens(const std::filesystem::path& path) {
  return base::with_memory_errors([&] {
    const auto [file, array] = array_at("tokens", path);
    const std::size_t axes = array.shape.size();
    if (axes != 1 && axes != 2)
      refuse("tokens: {} is [{}], but [tokens] or [sequences, tokens] is wanted", in_quotes(path.string()),
             fmt::join(array.shape, ", "));
    if (!is_whole(array.encoding))
      refuse("tokens: {} has {} numbers, but ids are whole numbers", in_quotes(path.string()),
             checkpoint::traits(array.encoding).name);
    RunInput out;
    out.sequences = axes == 2 ? array.shape[0] : 1;
    out.length = array.shape.back();
    check_count("tokens", out.sequences, out.length);
    out.ids.resize(static_cast<std::size_t>(out.sequences * out.length));
    file.read_i64(array.name, 0, array.rows(), out.ids);
    return out;
  });
}

RunInput random_tokens(const Model& model, std::int64_t sequences, std::int64_t length) {
  return base::with_memory_errors([&] {
    if (!model.embedding.known())
      refuse("tokens: {} has no embedding of tokens; give what enters its first block (--embeddings, embeddings=)",
             in_quotes(model.name));
    RunInput out;
    out.sequences = sequences;
    out.length = length;
    if (length == 0) {
      out.length = kRandomLength;
      for (const Attention& a : model.layers) out.length = std::min(out.length, a.context);
    }
    check_count("tokens", out.sequences, out.length);
    const auto vocabulary = static_cast<std::uint64_t>(model.embedding.vocabulary);
    for (std::uint32_t i = 0; i < static_cast<std::uint32_t>(out.sequences * out.length); ++i)
      out.ids.push_back(static_cast<std::int64_t>(base::philox4x32({i, 0, 0, 0}, 1, 0)[0] * vocabulary >> 32));
    return out;
  });
}

RunInput read_embeddings(const std::filesystem::path& path) {
  return base::with_memory_errors([&] {
    const auto [file, array] = array_at("embeddings", path);
    const std::size_t axes = array.shape.size();
    if (axes != 2 && axes != 3)
      refuse("embeddings: {} is [{}], but [tokens, width] or [sequences, tokens, width] is wanted",
             in_quotes(path.string()), fmt::join(array.shape, ", "));
    RunInput out;
    out.sequences = axes == 3 ? array.shape[0] : 1;
    out.length = array.shape[axes - 2];
    out.width = array.shape.back();
    check_count("embeddings", out.sequences, out.length);
    if (out.width < 1) refuse("embeddings: {} has rows of no numbers", in_quotes(path.string()));
    const double values =
        static_cast<double>(out.sequences) * static_cast<double>(out.length) * static_cast<double>(out.width);
    const double arrays = 4;  // these, and the three that any run has of this size
    want_memory({base::saturated(arrays * sizeof(float) * values), 1, "embeddings",
                 fmt::format("[{}]", fmt::join(array.shape, ", "))});
    out.embeddings = file.read_f32(array.name);
    return out;
  });
}

const char* name_of_input(const RunInput& input) { return input.embeddings.empty() ? "tokens" : "embeddings"; }

void check_run(const Checkpoint& checkpoint, const Model& model, const RunInput& input) {
  const bool ids = input.embeddings.empty();
  const char* const name = name_of_input(input);
  if (!model.network) refuse("{}: {} cannot be run: {}", name, in_quotes(model.name), model.why_not_run);
  check_count(name, input.sequences, input.length);
  const std::int64_t tokens = input.sequences * input.length, width = model.layers.front().q.front().width;
  std::int64_t context = model.layers.front().context;
  for (const Attention& a : model.layers) context = std::min(context, a.context);
  if (input.length > context)
    refuse("{}: {} in a sequence, but the model's context is {} (--context, context=)", name, input.length, context);
  if (!ids) {
    if (!input.ids.empty()) refuse("embeddings: ids came with them, but one of both is wanted");
    if (input.width != width)
      refuse("embeddings: rows of {} numbers, but the first block takes {}", input.width, width);
    if (static_cast<std::int64_t>(input.embeddings.size()) != tokens * width)
      refuse("embeddings: {} numbers, but {} rows of {} are wanted", input.embeddings.size(), tokens, width);
    if (!std::all_of(input.embeddings.begin(), input.embeddings.end(), [](float x) { return std::isfinite(x); }))
      refuse("embeddings: not all numbers are finite");
    return;
  }
  const Embedding& e = model.embedding;
  if (!e.known())
    refuse("tokens: {} has no embedding of tokens; give what enters its first block (--embeddings, embeddings=)",
           in_quotes(model.name));
  if (static_cast<std::int64_t>(input.ids.size()) != tokens)
    refuse("tokens: {} ids, but {} are wanted", input.ids.size(), tokens);
  for (const std::int64_t id : input.ids)
    if (id < 0 || id >= e.vocabulary) refuse("tokens: the id {}, but the vocabulary has 0 to {}", id, e.vocabulary - 1);
  if (!e.positions.empty())
    if (const std::int64_t most = checkpoint.at(e.positions).shape[0] - e.first_position; input.length > most)
      refuse("tokens: {} in a sequence, but the model has {} positions", input.length, most);
}

}  // namespace rootdk::audit
