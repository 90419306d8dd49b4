// Embeds, then block by block: norm, projections, the engine, MLP.
#include "rootdk/audit/run.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <span>
#include <utility>

#include "audit/linear_of.h"
#include "audit/run_input.h"
#include "audit/turn.h"
#include "base/free_memory.h"
#include "base/memory_errors.h"
#include "base/parallel.h"
#include "engine/call_bytes.h"
#include "rootdk/attention.h"

namespace rootdk::audit {

namespace {

// Rows that go through an MLP together: what is between its halves is held for these only.
constexpr std::int64_t kMlpRows = 512;
// Heads × sequences that one call of the engine keeps statistics of, apart until they are merged: each takes some
// kilobytes.
constexpr std::int64_t kHeadsTogether = 4096;
constexpr std::int64_t kValuesOfTask = 1 << 14;

std::int64_t sequences_together(const Attention& a) { return std::max<std::int64_t>(1, kHeadsTogether / a.heads_q); }

// call(first, last) for pieces of 0 … count − 1, on all threads.
template <class Call>
void in_pieces(std::int64_t count, const Call& call) {
  base::parallel_tasks((count + kValuesOfTask - 1) / kValuesOfTask, base::free_threads(), [&](std::int64_t task, int) {
    call(static_cast<std::size_t>(task * kValuesOfTask),
         static_cast<std::size_t>(std::min(count, (task + 1) * kValuesOfTask)));
  });
}

float activated(Activation activation, float x) {
  switch (activation) {
    case Activation::kSilu: return x / (1 + std::exp(-x));
    case Activation::kQuickGelu: return x / (1 + std::exp(-1.702f * x));
    case Activation::kGelu: return 0.5f * x * (1 + std::erf(x * static_cast<float>(std::numbers::sqrt2 / 2)));
    case Activation::kGeluTanh: {
      constexpr auto kRoot = static_cast<float>(std::numbers::sqrt2 * std::numbers::inv_sqrtpi);  // √(2/π)
      return 0.5f * x * (1 + std::tanh(kRoot * (x + 0.044715f * x * x * x)));
    }
    case Activation::kRelu: break;
  }
  return std::max(x, 0.0f);
}

void add(std::span<float> to, std::span<const float> what) {
  in_pieces(static_cast<std::int64_t>(to.size()), [&](std::size_t first, std::size_t last) {
    for (std::size_t i = first; i < last; ++i) to[i] += what[i];
  });
}

class Runner {
 public:
  Runner(const checkpoint::Checkpoint& file, const Model& model, const RunInput& input, const RunOptions& options)
      : file_(file),
        model_(model),
        network_(*model.network),
        input_(input),
        options_(options),
        width_(model.layers.front().q.front().width),
        tokens_(input.sequences * input.length) {}

  Run run() {
    Run out;
    out.sequences = input_.sequences;
    out.length = input_.length;
    out.width = width_;
    x_ = input_.embeddings.empty() ? embedded() : input_.embeddings;
    branch_.resize(x_.size());
    for (std::size_t layer = 0; layer < model_.layers.size(); ++layer) {
      report(static_cast<double>(layer), layer);
      if (!run_layer(layer, out.layers)) {
        out.complete = false;
        return out;
      }
    }
    norm(network_.final_norm).apply(x_, width_);
    if (options_.progress) options_.progress(1, "");
    out.last_hidden_state = std::move(x_);
    return out;
  }

 private:
  bool stopped() const { return options_.stop && options_.stop(); }
  void report(double done, std::size_t layer) const {
    if (!options_.progress) return;
    const std::size_t all = model_.layers.size();
    options_.progress(done / static_cast<double>(all), fmt::format("running, layer {} of {}", layer + 1, all));
  }
  ReadNorm norm(const NormPlace& place) const { return {file_, place, network_.epsilon}; }

  std::vector<float> embedded() const;
  std::vector<std::int64_t> position_rows() const;
  bool run_layer(std::size_t layer, std::vector<std::vector<HeadStats>>& stats);
  std::vector<HeadStats> attend(const Attention& a, const Block& block, std::span<const float> x);
  bool apply_mlp(const Block& block, std::span<const float> x, std::size_t layer);
  // x ← sum_norm(x + out_norm(branch))
  void take_branch(const NormPlace& out_norm, const NormPlace& sum_norm) {
    norm(out_norm).apply(branch_, width_);
    add(x_, branch_);
    norm(sum_norm).apply(x_, width_);
  }

  // [sequences, heads, length, dim] of rows that hold all heads.
  Tensor heads_of(std::vector<float>& rows, std::int64_t heads, std::int64_t dim) const {
    return tensor(rows.data(), {input_.sequences, heads, input_.length, dim},
                  {input_.length * heads * dim, dim, heads * dim, 1});
  }

  const checkpoint::Checkpoint& file_;
  const Model& model_;
  const Network& network_;
  const RunInput& input_;
  const RunOptions& options_;
  std::int64_t width_, tokens_;
  std::vector<float> x_, branch_;  // [tokens, width]: the stream, and what is to be added to it
};

// The row of the table of positions, for every token.
std::vector<std::int64_t> Runner::position_rows() const {
  const Embedding& e = model_.embedding;
  std::vector<std::int64_t> out;
  for (std::int64_t i = 0, next = e.first_position; i < tokens_; ++i) {
    if (i % input_.length == 0) next = e.first_position;
    out.push_back(e.padding && input_.ids[static_cast<std::size_t>(i)] == *e.padding ? e.first_position - 1 : next++);
  }
  return out;
}

std::vector<float> Runner::embedded() const {
  const Embedding& e = model_.embedding;
  std::vector<float> out(static_cast<std::size_t>(tokens_ * width_));
  const checkpoint::TensorInfo& table = file_.at(e.tokens);
  const std::vector<float> all = table.compressed ? file_.read_f32(e.tokens) : std::vector<float>();
  const std::vector<float> positions =
      e.positions.empty() ? std::vector<float>() : rows_of(file_, e.positions, e.first_position + input_.length);
  const std::vector<float> type = e.token_types.empty() ? std::vector<float>() : rows_of(file_, e.token_types, 1);
  const std::vector<std::int64_t> places = position_rows();
  const auto factor = static_cast<float>(e.factor);
  base::parallel_tasks(tokens_, base::free_threads(), [&](std::int64_t i, int) {
    const std::span<float> row =
        std::span(out).subspan(static_cast<std::size_t>(i * width_), static_cast<std::size_t>(width_));
    const std::int64_t id = input_.ids[static_cast<std::size_t>(i)];
    if (all.empty()) file_.read_f32(e.tokens, id, 1, row);
    else std::copy_n(all.begin() + id * width_, width_, row.begin());
    const float* const position =
        positions.empty() ? nullptr : positions.data() + places[static_cast<std::size_t>(i)] * width_;
    for (std::size_t c = 0; c < row.size(); ++c) {
      row[c] *= factor;
      if (!type.empty()) row[c] += type[c];
      if (position != nullptr) row[c] += position[c];
    }
  });
  norm(e.norm).apply(out, width_);
  return out;
}

Problem problem_of(const Model& model, const Attention& a) {
  Problem problem;
  problem.scale = Scale::constant(a.scale);
  if (!model.scale_rule.empty())
    if (const Scale rule = Scale::parse(model.scale_rule); rule.by_row()) problem.scale = rule;
  if (a.soft_cap) problem.soft_cap = static_cast<float>(*a.soft_cap);
  problem.mask.causal = a.causal;
  if (a.window) problem.mask.window = Window{*a.window - 1, Window::kUnbounded};
  problem.stats = StatsLevel::kFull;
  return problem;
}

std::vector<HeadStats> Runner::attend(const Attention& a, const Block& block, std::span<const float> x) {
  const std::int64_t dim = a.dim_qk, dim_v = block.v.rows;
  const auto project = [&](const Part& part, std::int64_t heads) {
    std::vector<float> rows(static_cast<std::size_t>(tokens_ * heads * part.rows));
    nn::apply<float>(linear_of(file_, part, heads), x, rows);
    return rows;
  };
  std::vector<float> q = project(a.q.front(), a.heads_q), k = project(a.k.front(), a.heads_kv),
                     v = project(block.v, a.heads_kv);
  norm(a.q_norm).apply(heads_of(q, a.heads_q, dim));
  norm(a.k_norm).apply(heads_of(k, a.heads_kv, dim));
  const bool is_short = !a.rotary.short_frequencies.empty() && input_.length <= a.rotary.short_length;
  const theory::Rotation rotation = {a.rotary.pairing, is_short ? a.rotary.short_frequencies : a.rotary.frequencies};
  turn(rotation, a.rotary.magnitude, heads_of(q, a.heads_q, dim));
  turn(rotation, a.rotary.magnitude, heads_of(k, a.heads_kv, dim));

  std::vector<float> o(static_cast<std::size_t>(tokens_ * a.heads_q * dim_v));
  const Problem problem = problem_of(model_, a);
  const std::int64_t together = sequences_together(a);
  Stats stats;
  for (std::int64_t first = 0; first < input_.sequences; first += together) {
    const auto some = [&](std::vector<float>& rows, std::int64_t heads, std::int64_t each) {
      Tensor all = heads_of(rows, heads, each);
      all.data = rows.data() + first * all.strides[0];
      all.shape[0] = std::min(together, input_.sequences - first);
      return all;
    };
    const Stats next = forward(problem, {some(q, a.heads_q, dim), some(k, a.heads_kv, dim), some(v, a.heads_kv, dim_v)},
                               {.o = some(o, a.heads_q, dim_v)});
    stats = merge(stats, over_batch(next));
  }
  nn::apply<float>(linear_of(file_, block.o), o, branch_);
  return std::move(stats.per_head);
}

bool Runner::apply_mlp(const Block& block, std::span<const float> x, std::size_t layer) {
  const bool gated = block.gate.known();
  const nn::Linear gate = gated ? linear_of(file_, block.gate) : nn::Linear(), up = linear_of(file_, block.up),
                   down = linear_of(file_, block.down);
  std::vector<float> hidden, gates;
  for (std::int64_t first = 0; first < tokens_; first += kMlpRows) {
    if (stopped()) return false;
    report(static_cast<double>(layer) + 0.5 + 0.5 * static_cast<double>(first) / static_cast<double>(tokens_), layer);
    const std::int64_t rows = std::min(kMlpRows, tokens_ - first);
    const auto begin = static_cast<std::size_t>(first * width_), count = static_cast<std::size_t>(rows * width_);
    hidden.resize(static_cast<std::size_t>(rows * up.out));
    nn::apply<float>(up, x.subspan(begin, count), hidden);
    if (gated) {
      gates.resize(hidden.size());
      nn::apply<float>(gate, x.subspan(begin, count), gates);
    }
    in_pieces(static_cast<std::int64_t>(hidden.size()), [&](std::size_t from, std::size_t to) {
      for (std::size_t i = from; i < to; ++i)
        hidden[i] = gated ? activated(block.activation, gates[i]) * hidden[i] : activated(block.activation, hidden[i]);
    });
    nn::apply<float>(down, hidden, std::span(branch_).subspan(begin, count));
  }
  return true;
}

// False: stopped.
bool Runner::run_layer(std::size_t layer, std::vector<std::vector<HeadStats>>& stats) {
  if (stopped()) return false;
  const Block& block = network_.blocks[layer];
  std::vector<float> normed = x_;
  norm(block.attention_norm).apply(normed, width_);
  std::vector<HeadStats> heads = attend(model_.layers[layer], block, normed);
  if (block.parallel) {
    normed = x_;
    take_branch(block.attention_out_norm, block.attention_sum_norm);
  } else {
    take_branch(block.attention_out_norm, block.attention_sum_norm);
    normed = x_;
  }
  norm(block.mlp_norm).apply(normed, width_);
  if (!apply_mlp(block, normed, layer)) return false;
  take_branch(block.mlp_out_norm, block.mlp_sum_norm);
  stats.push_back(std::move(heads));
  return true;
}

}  // namespace

// Half by half: what run_layer, attend and apply_mlp hold at once. What is stored transposed is read whole before it is
// turned round.
std::int64_t bytes_to_run(const Model& model, const RunInput& input) {
  const auto tokens = static_cast<double>(input.sequences) * static_cast<double>(input.length);
  const auto values = [](std::int64_t rows, std::int64_t columns) {
    return static_cast<double>(rows) * static_cast<double>(columns);
  };
  double most = 0, kept = 0;
  const double width = static_cast<double>(model.layers.front().q.front().width);
  for (std::size_t i = 0; i < model.layers.size(); ++i) {
    const Attention& a = model.layers[i];
    const Block& block = model.network->blocks[i];
    const double copies = a.q.front().transposed ? 2 : 1;
    const std::int64_t rows_q = a.heads_q * a.dim_qk, rows_k = a.heads_kv * a.dim_qk,
                       rows_v = a.heads_kv * block.v.rows;
    const std::int64_t out = a.heads_q * block.v.rows;
    const double weight = values(std::max({rows_q, rows_k, rows_v, out}), a.q.front().width);
    const double rows = static_cast<double>(rows_q + rows_k + rows_v + out);
    const std::int64_t together = std::min(input.sequences, sequences_together(a));
    const Shape call = {together,     a.heads_q, a.heads_kv,   input.length,
                        input.length, a.dim_qk,  block.v.rows, DType::kF32};
    const double beside = std::max(copies * weight, engine::bytes_of_call(problem_of(model, a), call) / sizeof(float));
    most = std::max(most, beside + tokens * rows);
    kept += static_cast<double>(a.heads_q) * engine::bytes_of_head_stats(StatsLevel::kFull);
    const double mlp = (block.gate.known() ? 3 : 2) * values(block.up.in, block.up.out) +
                       (copies - 1) * values(block.up.in, block.up.out);
    most =
        std::max(most, mlp + 2 * std::min(tokens, static_cast<double>(kMlpRows)) * static_cast<double>(block.up.out));
  }
  most += 3 * tokens * width;  // the stream, its normed copy, the branch
  return base::saturated(most * sizeof(float) + kept);
}

Run run(const checkpoint::Checkpoint& checkpoint, const Model& model, const RunInput& input,
        const RunOptions& options) {
  return base::with_memory_errors([&] {
    check_run(checkpoint, model, input);
    want_memory({bytes_to_run(model, input), base::free_threads(), name_of_input(input),
                 fmt::format("{} sequences of {}", input.sequences, input.length)});
    return Runner(checkpoint, model, input, options).run();
  });
}

}  // namespace rootdk::audit
