// Bytes of a layer's open tensors, of each thread's head and of all findings, counted before any is allocated.
#include "audit/memory.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <memory>
#include <set>
#include <string>
#include <utility>

#include "audit/embeddings.h"
#include "audit/run_input.h"
#include "base/free_memory.h"
#include "base/parallel.h"
#include "engine/call_bytes.h"

namespace rootdk::audit {

namespace {

// Bounds how long a wish to stop waits. In memory are only the heads that threads are at, and projections that are
// stored transposed, which are read whole: a layer that has such is looked at alone.
constexpr std::int64_t kBytesTogether = 256 << 20;

// Matrices [d_k, d_k] of doubles: of a key head, with those on embeddings, and at once where two projections meet.
constexpr double kMatricesOfKeys = 4, kMatricesOfMeeting = 13;
// Of a head that was looked at: its names and numbers, and a sentence or two about it.
constexpr double kBytesOfWords = 1024, kDistances = 48;

double real(std::int64_t value) { return static_cast<double>(value); }

std::int64_t bytes_of(const Attention& a) {
  std::int64_t values = 0;
  for (const auto& [parts, heads] : {std::pair(&a.q, a.heads_q), std::pair(&a.k, a.heads_kv)})
    for (const Part& part : *parts) {
      if (part.transposed) return kBytesTogether;
      values += heads * part.rows * part.width;
    }
  return values * static_cast<std::int64_t>(sizeof(float));
}

double matrix(const Attention& a) { return sizeof(double) * real(a.dim_qk) * real(a.dim_qk); }

// Activations [tokens, width] of a layer.
double activations(double tokens, const Attention& a) {
  return sizeof(float) * tokens * real(row_stride(a.q.front().width));
}

// What a layer holds while it is looked at: recorded activations, embeddings for queries and for keys, tensors that are
// stored transposed, and all of its key heads.
double bytes_of_open(const checkpoint::Checkpoint& checkpoint, const Attention& a, double recorded, double embedded) {
  std::set<std::string> transposed;
  for (const auto* parts : {&a.q, &a.k})
    for (const Part& part : *parts)
      if (part.transposed) transposed.insert(part.weight);
  double values = 0;
  for (const std::string& tensor : transposed)
    values += real(checkpoint.at(tensor).rows()) * real(checkpoint.at(tensor).width());
  return activations(recorded + 2 * embedded, a) + sizeof(float) * values +
         real(a.heads_kv) * kMatricesOfKeys * matrix(a);
}

// What a thread holds: a head's rows as they are read and as they are used, the meeting, and of recorded activations q
// and k, thrice and in double.
double bytes_of_head(const Attention& a, double recorded, double embedded) {
  double rows = 0;
  for (const Part& part : a.q) rows = std::max(rows, real(part.rows) * real(row_stride(part.width)));
  double bytes = 2 * sizeof(float) * rows + kMatricesOfMeeting * matrix(a);
  bytes += std::max(embedded * real(a.dim_qk) * 4 * sizeof(float), recorded * real(a.dim_qk) * 6 * sizeof(float));
  if (recorded > 0) {
    Problem problem;
    problem.stats = StatsLevel::kFull;
    const auto tokens = static_cast<std::int64_t>(recorded);
    bytes += engine::bytes_of_call(problem, {1, 1, 1, tokens, tokens, a.dim_qk, 1, DType::kF32});
  }
  return bytes;
}

double bytes_of_findings(const Model& model, const Options& options) {
  double bytes = 0;
  for (const Attention& a : model.layers) {
    const double spectrum =
        options.spectra ? real(static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(a.dim_qk)))) : 0;
    const double curve = kDistances * sizeof(theory::AtDistance);
    bytes += real(a.heads_q) * (sizeof(Head) + sizeof(double) * spectrum + curve + kBytesOfWords);
  }
  return bytes;
}

}  // namespace

std::size_t end_of_group(const std::vector<Attention>& layers, std::size_t begin) {
  std::int64_t bytes = bytes_of(layers[begin]);
  std::size_t end = begin + 1;
  while (end < layers.size() && (bytes += bytes_of(layers[end])) <= kBytesTogether) ++end;
  return end;
}

MemoryNeed memory_of(const checkpoint::Checkpoint& checkpoint, const Model& model, const Options& options,
                     const Inputs* inputs) {
  const int threads = base::free_threads();
  const double embedded = real(Embeddings::sampled(model));
  double weights = 0, most_recorded = 0;
  for (std::size_t begin = 0, end = 0; begin < model.layers.size(); begin = end) {
    end = end_of_group(model.layers, begin);
    double open = 0, head = 0, heads = 0;
    for (std::size_t i = begin; i < end; ++i) {
      const Attention& a = model.layers[i];
      const double recorded = inputs != nullptr ? real(inputs->tokens_of(a)) : 0;
      open += bytes_of_open(checkpoint, a, recorded, embedded);
      head = std::max({head, bytes_of_head(a, recorded, embedded), activations(recorded, a)});
      heads += real(a.heads_q);
      most_recorded = std::max(most_recorded, recorded);
    }
    weights = std::max(weights, open + std::min(heads, static_cast<double>(threads)) * head);
  }
  const double sample = model.layers.empty() ? 0 : 4 * activations(embedded, model.layers.front());
  const double findings = bytes_of_findings(model, options);
  const double run = options.run ? static_cast<double>(bytes_to_run(model, *options.run)) : 0;
  // A run comes after the weights, but allocators hardly give back what so many small arrays took.
  MemoryNeed need = {base::saturated(sample + findings + weights + run), threads, {}, {}};
  if (run > weights) {
    need.argument = name_of_input(*options.run);
    need.value = fmt::format("{} sequences of {}", options.run->sequences, options.run->length);
  } else if (most_recorded > 0) {
    need.argument = "inputs";
    need.value = fmt::format("{} tokens", most_recorded);
  }
  return need;
}

MemoryNeed memory_of(const checkpoint::Checkpoint& checkpoint, const Model& model, const Options& options) {
  if (options.run) check_run(checkpoint, model, *options.run);
  std::unique_ptr<Inputs> inputs;
  if (!options.inputs.empty()) inputs = std::make_unique<Inputs>(options.inputs, model);
  return memory_of(checkpoint, model, options, inputs.get());
}

}  // namespace rootdk::audit
