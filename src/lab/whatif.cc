// Treatments read from text, each applied to q, k or the problem and run by the engine on full statistics.
#include "rootdk/lab/whatif.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstddef>

#include "base/nearest.h"
#include "base/read_number.h"
#include "engine/call_bytes.h"
#include "lab/need.h"
#include "rootdk/adaptive.h"
#include "rootdk/attention.h"
#include "rootdk/qk_norm.h"

namespace rootdk::lab {

namespace {

constexpr double kCosineFactor = 10;  // where Swin v2 starts
constexpr double kSoftCap = 50;       // Gemma 2's

/// "name(number)" → the number; nothing if the text is not of that form.
std::optional<double> argument_of(std::string_view text, std::string_view name) {
  if (!text.starts_with(name) || !text.ends_with(')')) return {};
  text.remove_prefix(name.size());
  if (!text.starts_with('(')) return {};
  text = text.substr(1, text.size() - 2);
  const std::optional<double> value = base::read_number<double>(text);
  if (!value || !(*value > 0 && std::isfinite(*value)))
    refuse("rules: \"{}({})\": a number above 0 is wanted", name, text);
  return value;
}

std::string describe(const Treatment& t) {
  switch (t.on) {
    case Treatment::On::kUnitVariance: return "one per head, so that the variance within rows is 1";
    case Treatment::On::kQkNorm: return "RMS norm of q and k, then " + t.scale.describe();
    case Treatment::On::kCosine: return "cosine of q and k times " + fmt::format("{:g}", t.scale.value);
    case Treatment::On::kTemperature: return t.scale.describe() + ", sharpened where entropy is high";
    case Treatment::On::kScores: break;
  }
  return t.soft_cap ? fmt::format("{}, then {:g}*tanh(s/{:g})", t.scale.describe(), *t.soft_cap, *t.soft_cap)
                    : t.scale.describe();
}

/// A row-major copy of a tensor's size and dtype.
struct Copy {
  std::vector<std::byte> memory;
  Tensor view;

  explicit Copy(DType dtype, const Extents& shape)
      : memory(static_cast<std::size_t>(shape[0] * shape[1] * shape[2] * shape[3] * size_of(dtype))),
        view{memory.data(), dtype, Device::kCpu, shape, row_major(shape)} {}

  double at(std::size_t i) const {
    return view.dtype == DType::kF64 ? reinterpret_cast<const double*>(memory.data())[i]
                                     : static_cast<double>(reinterpret_cast<const float*>(memory.data())[i]);
  }
};

double relative_change(const Copy& output, const Copy& before) {
  double difference = 0, size = 0;
  for (std::size_t i = 0; i < static_cast<std::size_t>(output.view.count()); ++i) {
    difference += (output.at(i) - before.at(i)) * (output.at(i) - before.at(i));
    size += before.at(i) * before.at(i);
  }
  return std::sqrt(difference / size);
}

// Without values one number stands for all of them.
ConstTensor values_of(const WhatifOptions& o) {
  if (o.v.present()) return o.v;
  static constexpr double kZeros[1] = {0};  // 0 in f32, too
  ConstTensor v = o.k;
  v.data = kZeros;
  v.shape[3] = 1;
  v.strides = {0, 0, 0, 0};
  return v;
}

Shape checked_shape(const WhatifOptions& o) {
  const Shape shape = shape_of({o.q, o.k, values_of(o)});
  if (shape.dtype != DType::kF32 && shape.dtype != DType::kF64)
    refuse("q: dtype is {}, but f32 or f64 is wanted", name_of(shape.dtype));
  want_between("len_q", shape.len_q, 1, std::int64_t{1} << 40);
  want_between("len_kv", shape.len_kv, 2, std::int64_t{1} << 40);
  want_between("batch", shape.batch, 1, std::int64_t{1} << 40);
  return shape;
}

Problem problem_of(const WhatifOptions& o, const Scale& scale) {
  Problem p;
  p.scale = scale;
  p.mask.causal = o.causal;
  p.stats = StatsLevel::kFull;
  return p;
}

class Trial {
 public:
  explicit Trial(const WhatifOptions& options) : o_(options), v_(values_of(options)), shape_(checked_shape(options)) {
    unit_ = adaptive_unit_variance(problem_of(o_, Scale::none()), o_.q, o_.k);
    for (std::size_t h = 0; h < unit_.variance.size(); ++h)
      if (!std::isfinite(unit_.variance[h]))
        refuse("q, k: NaN or Inf in query head {} or its keys, but finite numbers are wanted", h);
  }

  const Shape& shape() const { return shape_; }
  const UnitVariance& unit_variance() const { return unit_; }
  std::size_t outputs() const {
    return static_cast<std::size_t>(shape_.batch * shape_.heads_q * shape_.len_q * shape_.dim_v);
  }

  Stats run(const Treatment& t, Copy& output) const {
    const Outputs out{output.view, {}, {}};
    Problem p = problem_of(o_, t.scale);
    p.soft_cap = t.soft_cap;
    if (t.on == Treatment::On::kTemperature) return forward_adaptive_temperature(p, {o_.q, o_.k, v_}, out);
    if (t.on == Treatment::On::kUnitVariance) p.scale = Scale::per_head(unit_.factors);
    if (t.on != Treatment::On::kQkNorm && t.on != Treatment::On::kCosine) return forward(p, {o_.q, o_.k, v_}, out);
    QkNorm norm;
    norm.kind = t.on == Treatment::On::kQkNorm ? QkNorm::Kind::kRms : QkNorm::Kind::kL2;
    Copy q(shape_.dtype, o_.q.shape), k(shape_.dtype, o_.k.shape);
    normalise(norm, o_.q, q.view);
    normalise(norm, o_.k, k.view);
    return forward(p, {q.view, k.view, v_}, out);
  }

  Extents output_shape() const { return {shape_.batch, shape_.heads_q, shape_.len_q, shape_.dim_v}; }

 private:
  const WhatifOptions& o_;
  ConstTensor v_;
  Shape shape_;
  UnitVariance unit_;
};

WhatifRow row_of(const Treatment& t, const Shape& shape, const Stats& stats) {
  WhatifRow row;
  row.name = t.name;
  row.description = describe(t);
  const bool one_number = t.on != Treatment::On::kUnitVariance && t.on != Treatment::On::kTemperature;
  if (one_number && !t.scale.by_row()) row.factor = t.scale.factor(0, shape.dim_qk);
  HeadStats all;
  for (std::int64_t h = 0; h < stats.heads; ++h) {
    HeadStats head = stats.at(0, h);
    for (std::int64_t b = 1; b < stats.batch; ++b) head = merge(head, stats.at(b, h));
    row.heads.push_back(numbers_of(head));
    all = h == 0 ? head : merge(all, head);
  }
  row.all = numbers_of(all);
  return row;
}

struct Known {
  std::string_view name, parameters;
};
constexpr Known kBesideScales[] = {
    {"measured", ""}, {"qk_norm", ""}, {"cosine", "(c)"}, {"soft_cap", "(c)"}, {"temperature", ""}};

/// Refuses what is called neither as a scale nor as one of these.
void check_known(std::string_view text) {
  std::string_view name = text.substr(0, text.find_first_of("(*"));
  name = name.substr(0, name.find_last_not_of(" \t") + 1);
  for (const Known& beside : kBesideScales)
    if (beside.name == name) refuse("rules: \"{}\", but {}{} is wanted", text, name, beside.parameters);
  std::vector<std::string> names, known;
  const auto add = [&](const auto& rule) {
    names.emplace_back(rule.name);
    known.push_back(fmt::format("{}{}", rule.name, rule.parameters));
  };
  for (const ScaleName& rule : Scale::names()) add(rule);
  if (std::find(names.begin(), names.end(), name) != names.end() || name == "per_head") return;
  for (const Known& rule : kBesideScales) add(rule);
  refuse("rules: \"{}\" is not known; known are {}{}", name, fmt::join(known, ", "), base::did_you_mean(name, names));
}

}  // namespace

WhatifNumbers numbers_of(const HeadStats& stats) {
  const SoftmaxStats& softmax = stats.softmax;
  WhatifNumbers out;
  out.rows = stats.rows_counted;
  out.sigma = std::sqrt(stats.score.within_row_variance());
  out.largest = static_cast<double>(stats.score_max);
  out.entropy = softmax.entropy;
  out.relative_entropy = softmax.entropy / softmax.log_keys;
  out.effective_keys = softmax.effective_keys;
  out.p_max = stats.mean_p_max;
  out.trace_j = softmax.trace_j;
  out.share_trace_j_under_1pct =
      static_cast<double>(softmax.rows_trace_j_under_1pct) / static_cast<double>(stats.rows_counted);
  return out;
}

std::vector<Treatment> usual_treatments() {
  std::vector<Treatment> all;
  for (const char* name :
       {"sqrt_dk", "none", "dk", "dk(8)", "measured", "qk_norm", "cosine(10)", "soft_cap(50)", "sqrt_dk*ssmax(0.43)",
        "sqrt_dk*entropy_invariant", "sqrt_dk*llama4", "sqrt_dk*yarn(4)", "temperature"})
    all.push_back(treatment(name));
  return all;
}

Treatment treatment(std::string_view text) {
  Treatment out;
  out.name = std::string(text);
  if (text == "measured") {
    out.on = Treatment::On::kUnitVariance;
  } else if (text == "qk_norm") {
    out.on = Treatment::On::kQkNorm;
  } else if (text == "temperature") {
    out.on = Treatment::On::kTemperature;
  } else if (const auto c = argument_of(text, "cosine"); c || text == "cosine") {
    out.on = Treatment::On::kCosine;
    out.scale = Scale::constant(c.value_or(kCosineFactor));
  } else if (const auto cap = argument_of(text, "soft_cap"); cap || text == "soft_cap") {
    out.soft_cap = static_cast<float>(cap.value_or(kSoftCap));
  } else {
    check_known(text);
    out.scale = Scale::parse(text);
  }
  return out;
}

// First two matrices [dim_qk, dim_qk] for each thread, of the variance that is measured. Then an output and the first
// of them, a call, and what a treatment makes of q and k: both of them anew, or q and a number for each of its rows.
MemoryNeed memory_of(const WhatifOptions& o) {
  want_some("rules", o.treatments);
  const Shape s = checked_shape(o);
  const double size = real(size_of(s.dtype)), dim = real(s.dim_qk),
               rows = real(s.batch) * real(s.heads_q) * real(s.len_q);
  const double keys = real(s.batch) * real(s.heads_kv) * real(s.len_kv);
  const double at_once = std::min(real(s.batch) * real(s.heads_kv), static_cast<double>(Machine::here().threads));
  const double variance = at_once * 2 * sizeof(double) * dim * dim;
  double anew = 0;
  for (const Treatment& t : o.treatments) {
    const bool norms = t.on == Treatment::On::kQkNorm || t.on == Treatment::On::kCosine;
    if (norms) anew = std::max(anew, size * dim * (rows + keys));
    if (t.on == Treatment::On::kTemperature) anew = std::max(anew, size * rows * (dim + 1));
  }
  const double outputs = (o.v.present() ? 2 : 1) * size * rows * real(s.dim_v);
  const double found = real(o.treatments.size()) * real(s.heads_q) * sizeof(WhatifNumbers);
  const double bytes =
      found + std::max(variance, outputs + anew + engine::bytes_of_call(problem_of(o, Scale::none()), s));
  return {base::saturated(bytes), Machine::here().threads, "q, k",
          fmt::format("[{}] and [{}]", fmt::join(o.q.shape, ", "), fmt::join(o.k.shape, ", "))};
}

Whatif try_rules(const WhatifOptions& options, const Watch& watch) {
  want_memory(memory_of(options));
  const Trial trial(options);
  const Shape& s = trial.shape();
  Whatif out;
  out.batch = s.batch, out.heads_q = s.heads_q, out.heads_kv = s.heads_kv;
  out.len_q = s.len_q, out.len_kv = s.len_kv, out.dim_qk = s.dim_qk;
  out.causal = options.causal;
  for (const double variance : trial.unit_variance().variance) out.head_divisors.push_back(std::sqrt(variance));
  std::optional<Copy> first;
  for (const Treatment& t : options.treatments) {
    if (watch.stopped()) {
      out.complete = false;
      break;
    }
    watch.report(static_cast<double>(out.rows.size()) / static_cast<double>(options.treatments.size()), t.name);
    Copy output(s.dtype, trial.output_shape());
    out.rows.push_back(row_of(t, s, trial.run(t, output)));
    if (options.v.present()) {
      if (!first) first = output, first->view.data = first->memory.data();
      out.rows.back().output_change = relative_change(output, *first);
    }
  }
  if (out.complete) watch.report(1);
  return out;
}

}  // namespace rootdk::lab
