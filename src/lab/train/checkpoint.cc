// What a run's checkpoint is made of, and how it is taken apart again.
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <span>
#include <string_view>
#include <utility>

#include "base/read_number.h"
#include "lab/train/check.h"
#include "lab/train/trainer.h"

namespace rootdk::lab {

using base::refuse;

namespace {

constexpr std::int64_t kStepColumns = 3;        // loss, accuracy, gradient norm
constexpr std::int64_t kHeadColumns = 4;        // σ, entropy, p_max, largest score
constexpr std::int64_t kEvaluationColumns = 3;  // step, loss, accuracy

// Every option that decides the run, and the model's sizes as a LLaMA config names them. Numbers are written so that
// they read back to the same bits.
std::map<std::string, std::string> identity(const Task& task, const RunOptions& o) {
  std::map<std::string, std::string> all;
  const auto put = [&](const char* name, const auto& value) { all[name] = fmt::format("{}", value); };
  put("rootdk.train", "1");
  put("model_type", "llama");
  put("vocab_size", o.model.vocabulary);
  put("hidden_size", o.model.width);
  put("intermediate_size", o.model.mlp_hidden);
  put("num_hidden_layers", o.model.layers);
  put("num_attention_heads", o.model.heads);
  put("num_key_value_heads", o.model.heads);
  put("head_dim", o.model.dim_qk);
  put("v_head_dim", o.model.dim_v);
  put("rope_theta", o.model.rotary_base);
  put("rms_norm_eps", o.model.norm_epsilon);
  put("scale", o.scale.name());
  put("task", task.description());
  put("seed", o.seed);
  put("steps", o.steps);
  put("sequences", o.sequences);
  put("learning_rate", o.learning_rate);
  put("warmup_share", o.warmup_share);
  put("final_rate_share", o.final_rate_share);
  put("clip_norm", o.clip_norm ? fmt::format("{}", *o.clip_norm) : "none");
  put("beta1", o.optimiser.beta1);
  put("beta2", o.optimiser.beta2);
  put("epsilon", o.optimiser.epsilon);
  put("weight_decay", o.optimiser.weight_decay);
  put("evaluate_every", o.evaluate_every);
  put("evaluation_batches", o.evaluation_batches);
  return all;
}

const CheckpointTensor& find(const Checkpoint& checkpoint, const std::string& path, std::string_view name,
                             const std::vector<std::int64_t>& shape) {
  for (const CheckpointTensor& tensor : checkpoint.tensors) {
    if (tensor.name != name) continue;
    std::size_t count = 1;
    for (const std::int64_t extent : shape) count *= static_cast<std::size_t>(extent);
    if (tensor.shape != shape || tensor.values.size() != count)
      refuse("{}: {} is [{}], but [{}] is wanted", path, name, fmt::join(tensor.shape, ", "), fmt::join(shape, ", "));
    return tensor;
  }
  refuse("{}: has no {}", path, name);
}

// Rows of a table whose number only the table knows.
const CheckpointTensor& find_rows(const Checkpoint& checkpoint, const std::string& path, std::string_view name,
                                  std::vector<std::int64_t> row) {
  for (const CheckpointTensor& tensor : checkpoint.tensors)
    if (tensor.name == name) {
      row.insert(row.begin(), tensor.shape.empty() ? 0 : std::max<std::int64_t>(tensor.shape[0], 0));
      break;
    }
  return find(checkpoint, path, name, row);
}

/// Numbers of the metadata, by the names that identity() gives them.
class Metadata {
 public:
  Metadata(const Checkpoint& checkpoint, const std::string& path) : all_(checkpoint.metadata), path_(path) {}

  const std::string& text(const char* name) const {
    const auto found = all_.find(name);
    if (found == all_.end()) refuse("{}: its metadata has no {}; not a checkpoint of rootdk's training?", path_, name);
    return found->second;
  }
  template <class Number>
  void read(const char* name, Number& value) const {
    const auto number = base::read_number<Number>(text(name));
    if (!number) refuse("{}: {} is {}, but a number is wanted", path_, name, text(name));
    value = *number;
  }

 private:
  const std::map<std::string, std::string>& all_;
  const std::string& path_;
};

}  // namespace

// What identity() writes, read back.
RunOptions options_of(const Checkpoint& checkpoint, const std::string& name) {
  const Metadata metadata(checkpoint, name);
  RunOptions o;
  metadata.read("vocab_size", o.model.vocabulary);
  metadata.read("hidden_size", o.model.width);
  metadata.read("intermediate_size", o.model.mlp_hidden);
  metadata.read("num_hidden_layers", o.model.layers);
  metadata.read("num_attention_heads", o.model.heads);
  metadata.read("head_dim", o.model.dim_qk);
  metadata.read("v_head_dim", o.model.dim_v);
  metadata.read("rope_theta", o.model.rotary_base);
  metadata.read("rms_norm_eps", o.model.norm_epsilon);
  o.scale = Scale::parse(metadata.text("scale"));
  metadata.read("seed", o.seed);
  metadata.read("steps", o.steps);
  metadata.read("sequences", o.sequences);
  metadata.read("learning_rate", o.learning_rate);
  metadata.read("warmup_share", o.warmup_share);
  metadata.read("final_rate_share", o.final_rate_share);
  if (metadata.text("clip_norm") == "none") o.clip_norm.reset();
  else metadata.read("clip_norm", o.clip_norm.emplace());
  metadata.read("beta1", o.optimiser.beta1);
  metadata.read("beta2", o.optimiser.beta2);
  metadata.read("epsilon", o.optimiser.epsilon);
  metadata.read("weight_decay", o.optimiser.weight_decay);
  metadata.read("evaluate_every", o.evaluate_every);
  metadata.read("evaluation_batches", o.evaluation_batches);
  return o;
}

Checkpoint Trainer::checkpoint(const RunResult& log) {
  Checkpoint result;
  result.metadata = identity(task_, options_);
  result.metadata["max_position_embeddings"] =
      fmt::format("{}", task_.length());  // for readers; the description decides it
  for (const nn::Parameter<float>& p : parameters_)
    result.tensors.push_back({p.name, p.shape, {p.values.begin(), p.values.end()}});
  const nn::AdamWState& state = optimiser_.state();
  const auto count = static_cast<std::int64_t>(state.m.size()), done = static_cast<std::int64_t>(log.steps.size());
  result.tensors.push_back({"train.adamw.m", {count}, state.m});
  result.tensors.push_back({"train.adamw.v", {count}, state.v});

  CheckpointTensor steps = {"train.steps", {done, kStepColumns}, {}};
  CheckpointTensor heads = {"train.heads", {done, options_.model.layers, options_.model.heads, kHeadColumns}, {}};
  for (const StepTrace& trace : log.steps) {
    steps.values.insert(steps.values.end(), {trace.loss, trace.accuracy, trace.gradient_norm});
    for (const HeadTrace& head : trace.heads)
      heads.values.insert(heads.values.end(), {head.sigma, head.entropy, head.p_max, head.score_max});
  }
  CheckpointTensor evaluations = {
      "train.evaluations", {static_cast<std::int64_t>(log.evaluations.size()), kEvaluationColumns}, {}};
  for (const Evaluation& e : log.evaluations)
    evaluations.values.insert(evaluations.values.end(), {static_cast<float>(e.step), e.loss, e.accuracy});
  for (CheckpointTensor* tensor : {&steps, &heads, &evaluations}) result.tensors.push_back(std::move(*tensor));
  return result;
}

void Trainer::restore(const Checkpoint& checkpoint, const std::string& path, RunResult& log) {
  for (const auto& [name, wanted] : identity(task_, options_)) {
    const auto found = checkpoint.metadata.find(name);
    if (found == checkpoint.metadata.end())
      refuse("{}: its metadata has no {}; not a checkpoint of rootdk's training?", path, name);
    if (found->second != wanted) refuse("{}: {} is {}, but this run has {}", path, name, found->second, wanted);
  }
  // All of it is looked up, and so checked, before anything is changed.
  std::vector<const CheckpointTensor*> values;
  for (const nn::Parameter<float>& p : parameters_) values.push_back(&find(checkpoint, path, p.name, p.shape));
  const auto count = static_cast<std::int64_t>(optimiser_.state().m.size());
  const CheckpointTensor& m = find(checkpoint, path, "train.adamw.m", {count});
  const CheckpointTensor& v = find(checkpoint, path, "train.adamw.v", {count});
  const CheckpointTensor& steps = find_rows(checkpoint, path, "train.steps", {kStepColumns});
  const std::int64_t done = steps.shape[0], layers = options_.model.layers, each = options_.model.heads;
  if (done > options_.steps) refuse("{}: {} steps done, but the run has {}", path, done, options_.steps);
  const CheckpointTensor& heads = find(checkpoint, path, "train.heads", {done, layers, each, kHeadColumns});
  const CheckpointTensor& evaluations = find_rows(checkpoint, path, "train.evaluations", {kEvaluationColumns});

  for (std::size_t n = 0; n < parameters_.size(); ++n)
    std::copy(values[n]->values.begin(), values[n]->values.end(), parameters_[n].values.begin());
  optimiser_.restore({done, m.values, v.values});
  log.steps.clear();
  const float* head = heads.values.data();
  for (std::int64_t i = 0; i < done; ++i) {
    const float* row = steps.values.data() + i * kStepColumns;
    StepTrace trace = {i + 1, row[0], row[1], row[2], {}};
    for (std::int64_t h = 0; h < layers * each; ++h, head += kHeadColumns)
      trace.heads.push_back({head[0], head[1], head[2], head[3]});
    log.steps.push_back(std::move(trace));
  }
  log.evaluations.clear();
  for (std::int64_t i = 0; i < evaluations.shape[0]; ++i) {
    const float* row = evaluations.values.data() + i * kEvaluationColumns;
    log.evaluations.push_back({static_cast<std::int64_t>(row[0]), row[1], row[2]});
  }
}

}  // namespace rootdk::lab
