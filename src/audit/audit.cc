// Some layers at a time: read, project, meet. Then what softmax makes of it, for all heads at once.

#include <Eigen/Cholesky>
#include <Eigen/Eigenvalues>
#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <memory>
#include <span>
#include <utility>

#include "audit/embeddings.h"
#include "audit/measure.h"
#include "audit/memory.h"
#include "audit/parts.h"
#include "audit/prediction.h"
#include "audit/run_input.h"
#include "audit/weights.h"
#include "base/memory_errors.h"
#include "base/parallel.h"
#include "base/refuse.h"
#include "rootdk/audit/findings.h"
#include "rootdk/theory/gaussian_softmax.h"

namespace rootdk::audit {

using base::refuse;

namespace {

using Matrix = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

constexpr double kF16Largest = 65504, kBf16Roundoff = 0x1p-9;

std::vector<std::int64_t> contexts_for(const Model& model, const Options& options) {
  constexpr std::int64_t kMostKeys = std::int64_t{1} << 40;
  std::vector<std::int64_t> out = options.contexts;
  if (out.empty()) {
    std::int64_t own = 2;
    for (const Attention& a : model.layers) own = std::max(own, a.context);
    for (const std::int64_t n : {512, 4096, 32768, 131072})
      if (n < own) out.push_back(n);
    out.push_back(own);
  }
  for (const std::int64_t n : out)
    if (n < 2 || n > kMostKeys) refuse("contexts: {}, but numbers from 2 to 2^40 are wanted", n);
  if (const auto at = options.judge_at) {
    if (*at < 2) refuse("at: {}, but at least 2 is wanted", *at);
    if (*at > kMostKeys) refuse("at: {}, but at most 2^40 is wanted", *at);
    out.push_back(*at);
  }
  std::sort(out.begin(), out.end());
  out.erase(std::unique(out.begin(), out.end()), out.end());
  return out;
}

std::vector<double> distances_for(const Attention& a, const Options& options) {
  if (!options.distances.empty() || a.rotary.frequencies.empty()) return options.distances;
  std::vector<double> out = {0};
  for (std::int64_t d = 1; d < a.context; d *= 2) out.push_back(static_cast<double>(d));
  return out;
}

// σᵢ of W_qᵀW_k, descending: roots of the eigenvalues of G_qG_k, or of LᵀG_kL with LLᵀ = G_q.
std::vector<double> spectrum_of(const theory::Projected& q, const theory::Projected& k) {
  const Eigen::LDLT<Matrix> factor(Eigen::Map<const Matrix>(q.covariance.data(), q.dim, q.dim));
  Matrix l = factor.matrixL();
  l = factor.transpositionsP().transpose() * l;
  l *= factor.vectorD().cwiseMax(0).cwiseSqrt().asDiagonal();
  const Matrix product = l.transpose() * Eigen::Map<const Matrix>(k.covariance.data(), k.dim, k.dim) * l;
  const Eigen::SelfAdjointEigenSolver<Matrix> solver(product, Eigen::EigenvaluesOnly);
  std::vector<double> out;
  for (Eigen::Index i = q.dim - 1; i >= 0; --i) out.push_back(std::sqrt(std::max(0.0, solver.eigenvalues()(i))));
  return out;
}

// The spread of cap·tanh(s/cap) for Gaussian s.
double capped(double sigma, const std::optional<double>& cap) {
  if (!cap || !(sigma > 0)) return sigma;
  double sum = 0, weights = 0;
  for (double z = -8; z <= 8; z += 0.125) {
    const double weight = std::exp(-z * z / 2), s = *cap * std::tanh(sigma * z / *cap);
    sum += weight * s * s;
    weights += weight;
  }
  return std::sqrt(sum / weights);
}

// What is known of a head before softmax comes in.
struct Draft {
  Head* head = nullptr;
  const Attention* attention = nullptr;
  // Of the surest inputs, with the variance that is reported in place of that over the context
  theory::HeadTheory theory;
  double sigma = 0;  // that softmax sees: after the soft-cap; measured where it was
  std::vector<RowSpread> rows = {};
  const HeadStats* ran = nullptr;  // what its scores did in a run
};

// From a variance of q·k within rows.
OnInputs on_inputs(const Attention& a, double variance, double isotropic_sigma) {
  OnInputs out;
  out.variance = std::max(0.0, variance);
  out.unit_divisor = std::sqrt(out.variance);
  out.ratio = out.unit_divisor / std::sqrt(static_cast<double>(a.dim_qk));
  out.sigma = out.unit_divisor * std::fabs(a.scale);
  out.sigma_over_isotropic = isotropic_sigma > 0 ? out.sigma / isotropic_sigma : Head::kUnknown;
  return out;
}

double clip_factor(double largest_raw, const Options& options) {
  return largest_raw > 0 ? std::min(1.0, options.clip_threshold / largest_raw) : 1;
}

theory::HeadTheory set_measured(const Attention& a, const std::vector<float>& q, const std::vector<float>& k,
                                const Options& options, theory::Meeting meeting, Head& head) {
  meeting.distances = {};
  meeting.context = static_cast<std::int64_t>(q.size()) / a.dim_qk;
  theory::HeadTheory found = theory::head_theory(moments_of(q, a.dim_qk), moments_of(k, a.dim_qk), meeting);
  Measured m;
  static_cast<OnInputs&>(m) = on_inputs(a, found.within_row_variance, head.sigma);
  const LargestScores largest = largest_scores(a, q, k);
  m.largest_score = largest.magnitude;
  m.largest_raw = largest.raw;
  m.clip_factor = clip_factor(largest.raw, options);
  head.measured = m;
  return found;
}

// In a run. Nothing is known of a head that had no finite row.
void set_measured(const HeadStats& stats, const Options& options, Draft& draft) {
  Head& head = *draft.head;
  Measured m;
  draft.ran = &stats;
  if (stats.rows_counted == 0) {
    m.variance = m.sigma = m.unit_divisor = m.ratio = m.sigma_over_isotropic = Head::kUnknown;
    m.largest_score = m.largest_raw = m.clip_factor = Head::kUnknown;
    draft.sigma = Head::kUnknown;
  } else {
    m.sigma = std::sqrt(stats.raw.within_row_variance());
    m.variance = stats.raw.within_row_variance() / stats.causes.scale_square;
    m.unit_divisor = std::sqrt(m.variance);
    m.ratio = m.unit_divisor / std::sqrt(static_cast<double>(head.d_k));
    m.sigma_over_isotropic = head.sigma > 0 ? m.sigma / head.sigma : Head::kUnknown;
    m.largest_score = std::max(std::fabs(stats.raw.max), std::fabs(stats.raw.min));
    m.largest_raw = stats.raw.max;
    m.clip_factor = clip_factor(m.largest_raw, options);
    draft.sigma = m.score_sigma = std::sqrt(stats.score.within_row_variance());
    m.keys = std::exp(stats.softmax.log_keys);
    m.entropy = stats.softmax.entropy;
    m.participation = 1 / stats.softmax.sum_p2;
    m.p_max = stats.mean_p_max;
    m.trace_j = stats.softmax.trace_j;
  }
  head.measured = m;
}

Draft draft_of(const Attention& a, const Side& q, const Side& k, const theory::Meeting& meeting, const Options& options,
               Head& head) {
  Draft draft{&head, &a, {}, 0};
  head.d_k = a.dim_qk;
  head.scale = a.scale;
  head.not_finite = q.not_finite + k.not_finite;
  head.overflows = head.not_finite == 0 && (q.overflows || k.overflows);
  if (!head.finite()) return draft;
  theory::HeadTheory& t = draft.theory;
  t = theory::head_theory(q.projected, k.projected, meeting);
  head.mean = t.mean;
  head.variance_in_context = t.within_row_variance;
  head.variance = std::max(0.0, t.phase_within_row_variance.value_or(t.within_row_variance));
  t.within_row_variance = head.variance;
  t.divisor = head.unit_divisor = std::sqrt(head.variance);
  t.divisor_over_sqrt_dim = head.ratio = head.unit_divisor / std::sqrt(static_cast<double>(a.dim_qk));
  t.sigma = head.sigma = head.unit_divisor * std::fabs(a.scale);
  if (t.bound) {
    head.bound = *t.bound;
    head.f16_headroom = kF16Largest / head.bound;
    head.bf16_rounding = kBf16Roundoff * head.bound;
  }
  head.sigma_q = t.sigma_q;
  head.sigma_k = t.sigma_k;
  head.key_mean_norm = t.key_mean_norm;
  head.alignment = t.alignment;
  head.effective_rank = t.effective_rank;
  head.curve = std::move(t.curve);
  if (a.rotary.frequencies.empty()) head.curve.clear();
  if (options.spectra) head.spectrum = spectrum_of(q.projected, k.projected);
  if (!head.spectrum.empty()) head.largest_singular_value = head.spectrum.front();
  return draft;
}

// Where inputs that are not isotropic come from.
struct Sources {
  const Inputs* inputs;  // null: nothing was recorded
  const Embeddings* embeddings;
};

// A layer that is being looked at.
struct Open {
  Open(const checkpoint::Checkpoint& checkpoint, const Sources& sources, const Options& options, Layer& into,
       Draft* first)
      : layer(into),
        drafts(first),
        weights(checkpoint, into.attention),
        distances(distances_for(into.attention, options)),
        tokens(sources.inputs != nullptr ? sources.inputs->of(into.attention) : std::nullopt),
        embedded(sources.embeddings->of(weights, into.attention)) {
    const Attention& a = layer.attention;
    meeting.scale = a.scale;
    meeting.rotation = {a.rotary.pairing, a.rotary.frequencies};
    meeting.context = a.context;
    meeting.distances = distances;
    keys.resize(static_cast<std::size_t>(a.heads_kv));
    keys_embedded.resize(keys.size());
    layer.heads.resize(static_cast<std::size_t>(a.heads_q));
  }

  Layer& layer;
  Draft* drafts;  // of its heads
  LayerWeights weights;
  std::vector<double> distances;  // meeting looks at them
  theory::Meeting meeting;
  std::optional<Tokens> tokens;
  std::optional<EmbeddedInputs> embedded;
  std::vector<Side> keys;  // of its key heads
  std::vector<theory::Projected> keys_embedded;
};

void prepare_keys(Open& open, std::int64_t h) {
  const auto at = static_cast<std::size_t>(h);
  open.keys[at] = open.weights.side(Which::kKeys, h);
  if (open.embedded && open.keys[at].not_finite == 0 && !open.keys[at].overflows)
    open.keys_embedded[at] =
        moments_of(rows_on(open.weights, Which::kKeys, h, open.embedded->keys), open.layer.attention.dim_qk);
}

bool is_finite(const theory::Projected& p) {
  const auto all = [](const std::vector<double>& values) {
    return std::all_of(values.begin(), values.end(), [](double x) { return std::isfinite(x); });
  };
  return all(p.mean) && all(p.covariance);
}

// Absent where the embeddings are so large that q or k leaves f32.
std::optional<theory::HeadTheory> set_on_embeddings(const Open& open, Head& head) {
  theory::Meeting meeting = open.meeting;
  meeting.distances = {};
  const theory::Projected q =
      moments_of(rows_on(open.weights, Which::kQueries, head.head, open.embedded->queries), head.d_k);
  const theory::Projected& k = open.keys_embedded[static_cast<std::size_t>(head.kv_head)];
  if (!is_finite(q) || !is_finite(k)) return {};
  theory::HeadTheory found = theory::head_theory(q, k, meeting);
  if (!std::isfinite(found.within_row_variance)) return {};
  head.on_embeddings = on_inputs(open.layer.attention, found.within_row_variance, head.sigma);
  return found;
}

// How rows of a head differ in spread. Means make all rows wider by the same: that part does not vary from row to row.
std::vector<RowSpread> row_spreads(const theory::HeadTheory& t, std::int64_t dim) {
  const double without_means =
      t.phase_average.value_or(t.alignment * static_cast<double>(dim) * std::pow(t.sigma_q * t.sigma_k, 2));
  return spread_of_rows(t.effective_rank *
                        (without_means > 0 ? std::pow(t.within_row_variance / without_means, 2) : 1));
}

void audit_head(const Options& options, Open& open, std::int64_t h) {
  const Attention& a = open.layer.attention;
  Head& head = open.layer.heads[static_cast<std::size_t>(h)];
  head.head = h;
  head.kv_head = h / (a.heads_q / a.heads_kv);
  Draft& draft = open.drafts[h];
  draft = draft_of(a, open.weights.side(Which::kQueries, h), open.keys[static_cast<std::size_t>(head.kv_head)],
                   open.meeting, options, head);
  if (!head.finite()) return;
  if (open.embedded) draft.theory = set_on_embeddings(open, head).value_or(draft.theory);
  if (open.tokens)
    draft.theory =
        set_measured(a, rows_on(open.weights, Which::kQueries, h, *open.tokens),
                     rows_on(open.weights, Which::kKeys, head.kv_head, *open.tokens), options, open.meeting, head);
  draft.rows = row_spreads(draft.theory, a.dim_qk);
  draft.sigma = capped(head.surest_sigma(), a.soft_cap);
}

// Calls task(layer, head) for all of them, on all threads; `heads` says how many a layer has.
template <class Task>
void for_each_head(std::span<const std::unique_ptr<Open>> layers, std::int64_t Attention::*heads, const Task& task) {
  std::vector<std::pair<Open*, std::int64_t>> all;
  for (const auto& open : layers)
    for (std::int64_t h = 0; h < open->layer.attention.*heads; ++h) all.emplace_back(open.get(), h);
  base::parallel_tasks(static_cast<std::int64_t>(all.size()), base::free_threads(), [&](std::int64_t i, int) {
    const auto& [open, h] = all[static_cast<std::size_t>(i)];
    task(*open, h);
  });
}

// Layers together, so that threads seldom wait for each other.
void audit_layers(const checkpoint::Checkpoint& checkpoint, const Sources& sources, const Options& options,
                  std::span<Layer> layers, Draft* drafts) {
  std::vector<Draft*> firsts;
  for (const Layer& layer : layers) {
    firsts.push_back(drafts);
    drafts += layer.attention.heads_q;
  }
  std::vector<std::unique_ptr<Open>> open(layers.size());
  base::parallel_tasks(static_cast<std::int64_t>(open.size()), base::free_threads(), [&](std::int64_t i, int) {
    const auto at = static_cast<std::size_t>(i);
    open[at] = std::make_unique<Open>(checkpoint, sources, options, layers[at], firsts[at]);
  });
  for_each_head(open, &Attention::heads_kv, [](Open& o, std::int64_t h) { prepare_keys(o, h); });
  for_each_head(open, &Attention::heads_q, [&](Open& o, std::int64_t h) { audit_head(options, o, h); });
}

// How many keys a row of this layer sees in such a context.
double keys_in(const Attention& a, std::int64_t context, bool own) {
  std::int64_t keys = context;
  if (own) keys = std::min(keys, a.context);
  if (a.window) keys = std::min(keys, *a.window);
  return static_cast<double>(std::max<std::int64_t>(keys, 2));
}

theory::Judgement judgement_of(const Draft& draft, double keys, double entropy, DType dtype,
                               const theory::Thresholds& thresholds) {
  const Head& head = *draft.head;
  theory::Evidence e;
  if (!head.finite()) {
    e.ground = theory::Ground::kWeights;
    e.not_finite = 1;
    e.overflows = head.overflows;
    return theory::judge(e, thresholds);
  }
  e = theory::evidence_of(draft.theory, keys, static_cast<double>(head.d_k), head.scale);
  e.ground = head.ground();
  e.sigma = draft.sigma;
  e.predicted_entropy = entropy;
  if (e.ground != theory::Ground::kWeights) e.expected_sigma = head.sigma;
  if (head.measured) {
    e.raw_max = head.measured->largest_score;
    e.dtype = dtype;
  }
  return theory::judge(e, thresholds);
}

// What the head did in a run, and what the weights let one expect.
theory::Judgement judgement_of_run(const Draft& draft, double predicted_entropy, DType dtype,
                                   const theory::Thresholds& thresholds) {
  const Head& head = *draft.head;
  theory::Evidence e =
      theory::evidence_of(*draft.ran, {dtype, static_cast<double>(head.d_k), std::fabs(head.scale), head.sigma});
  e.predicted_entropy = predicted_entropy;
  return theory::judge(e, thresholds);
}

// In what numbers the weights are kept, and so, most likely, q and k.
DType dtype_of(const checkpoint::Checkpoint& checkpoint, const Attention& a) {
  switch (checkpoint.at(a.q.front().weight).encoding) {
    case checkpoint::Encoding::kBF16: return DType::kBF16;
    case checkpoint::Encoding::kF16: return DType::kF16;
    default: return DType::kF32;
  }
}

// Sums and products of weights near the end of f32's range leave it.
bool overflows(const Head& head) {
  return !std::isfinite(head.variance) || !std::isfinite(head.sigma) || !std::isfinite(head.mean) ||
         !std::isfinite(head.effective_rank);
}

void predict(const checkpoint::Checkpoint& checkpoint, const Options& options, Audit& audit,
             std::vector<Draft>& drafts) {
  struct Range {
    double least = std::numeric_limits<double>::infinity(), most = 0;
  };
  std::map<double, Range> wanted;  // by number of keys
  // A number that was asked for is taken as it is; others end at a layer's own context.
  const auto keys_at = [&](const Attention& a, std::int64_t context) {
    return keys_in(a, context, options.contexts.empty() && options.judge_at != context);
  };
  for (Draft& draft : drafts) {
    if (draft.head->finite()) draft.head->overflows = overflows(*draft.head);
    if (!draft.head->finite()) continue;
    if (std::isnan(draft.sigma)) continue;
    const auto want = [&](double keys) {
      Range& range = wanted[keys];
      for (const RowSpread& row : draft.rows) {
        range.least = std::min(range.least, draft.sigma * row.factor);
        range.most = std::max(range.most, draft.sigma * row.factor);
      }
    };
    for (const std::int64_t n : audit.contexts) want(keys_at(*draft.attention, n));
    if (draft.ran != nullptr) want(draft.head->measured->keys);
  }
  std::map<double, PredictionTable> tables;
  for (const auto& [keys, range] : wanted) tables.emplace(keys, PredictionTable(keys, range.least, range.most));

  base::parallel_tasks(static_cast<std::int64_t>(drafts.size()), base::free_threads(), [&](std::int64_t i, int) {
    const Draft& draft = drafts[static_cast<std::size_t>(i)];
    Head& head = *draft.head;
    const DType dtype = dtype_of(checkpoint, *draft.attention);
    const auto judged = [&](double keys, double entropy) {
      return judgement_of(draft, keys, entropy, dtype, options.thresholds);
    };
    if (!head.finite()) {
      head.judgement = judged(2, Head::kUnknown);
      return;
    }
    if (std::isnan(draft.sigma)) {  // no row of the run was finite
      head.judgement = judgement_of_run(draft, Head::kUnknown, dtype, options.thresholds);
      return;
    }
    for (const std::int64_t n : audit.contexts) {
      const double keys = keys_at(*draft.attention, n);
      const Prediction p = tables.at(keys).at(draft.sigma, draft.rows);
      head.contexts.push_back({n, keys, draft.sigma / theory::critical_sigma(keys), p.entropy, 1 / p.sum_p2, p.p_max,
                               judged(keys, p.entropy).verdict});
    }
    if (draft.ran != nullptr) {
      const double entropy = tables.at(head.measured->keys).at(draft.sigma, draft.rows).entropy;
      head.judgement = judgement_of_run(draft, entropy, dtype, options.thresholds);
      return;
    }
    const double keys = keys_at(*draft.attention, audit.judged_at);
    head.judgement = judged(keys, tables.at(keys).at(draft.sigma, draft.rows).entropy);
  });
}

// Of the time that an audit takes: a layer's heads take about as long as to run it on 64 tokens.
double share_of_weights(const Options& options) {
  constexpr double kTokens = 64;
  return options.run ? kTokens / (kTokens + static_cast<double>(options.run->sequences * options.run->length)) : 1;
}

// Heads that have NaN or Inf among their own numbers keep what is known of them: that.
void measure_run(const checkpoint::Checkpoint& checkpoint, const Options& options, Audit& audit,
                 std::vector<Draft>& drafts) {
  RunOptions run_options;
  if (options.progress)
    run_options.progress = [&](double done, std::string_view what) {
      const double before = share_of_weights(options);
      options.progress(before + (1 - before) * done, what);
    };
  run_options.stop = options.stop;
  audit.ran = run(checkpoint, audit.model, *options.run, run_options);
  audit.complete = audit.ran->complete;
  auto draft = drafts.begin();
  for (const std::vector<HeadStats>& layer : audit.ran->layers)
    for (const HeadStats& stats : layer) {
      if (draft->head->finite()) set_measured(stats, options, *draft);
      ++draft;
    }
}

// Layers of `model`, whose embeddings and contexts are those of all its layers.
Audit audit_some(const checkpoint::Checkpoint& checkpoint, const Model& model, std::vector<Attention> attentions,
                 const Options& options) {
  return base::with_memory_errors([&] {
    Audit out;
    out.model = model;
    out.model.layers = std::move(attentions);
    set_contexts(model, options, out);
    if (!(options.clip_threshold > 0))
      refuse("QK-clip: a threshold of {}, but a number above 0 is wanted", options.clip_threshold);
    if (options.run) {
      if (!options.inputs.empty()) refuse("inputs: came with a run, which measures everything itself");
      check_run(checkpoint, model, *options.run);
    }
    std::unique_ptr<Inputs> inputs;
    if (!options.inputs.empty()) inputs = std::make_unique<Inputs>(options.inputs, model);
    want_memory(memory_of(checkpoint, out.model, options, inputs.get()));

    if (options.progress) options.progress(0, "embeddings");
    const Embeddings embeddings(checkpoint, model);
    const Sources sources = {inputs.get(), &embeddings};

    std::size_t heads = 0;
    for (const Attention& attention : out.model.layers) {
      out.layers.push_back({attention, {}});
      heads += static_cast<std::size_t>(attention.heads_q);
    }
    std::vector<Draft> drafts(heads);  // they point into the layers
    std::size_t done = 0, drafted = 0;
    const auto report = [&](std::size_t first, std::size_t end) {
      if (!options.progress) return;
      const double share = static_cast<double>(first) / static_cast<double>(out.layers.size());
      const std::string which =
          end - first == 1 ? fmt::format("layer {}", end) : fmt::format("layers {} to {}", first + 1, end);
      options.progress(share_of_weights(options) * share, fmt::format("{} of {}", which, out.layers.size()));
    };
    while (done < out.layers.size()) {
      if (options.stop && options.stop()) {
        out.complete = false;
        break;
      }
      const std::size_t end = end_of_group(out.model.layers, done);
      report(done, end);
      audit_layers(checkpoint, sources, options, std::span(out.layers).subspan(done, end - done),
                   drafts.data() + drafted);
      for (; done < end; ++done) drafted += static_cast<std::size_t>(out.model.layers[done].heads_q);
    }
    out.layers.resize(done);
    drafts.resize(drafted);
    if (options.run && out.complete) measure_run(checkpoint, options, out, drafts);
    predict(checkpoint, options, out, drafts);
    if (options.progress && out.complete) options.progress(1, "");
    return out;
  });
}

}  // namespace

void set_contexts(const Model& model, const Options& options, Audit& audit) {
  audit.contexts = contexts_for(model, options);
  audit.judged_at = options.judge_at.value_or(audit.contexts.back());
}

Audit audit(const checkpoint::Checkpoint& checkpoint, const Model& model, const Options& options) {
  return audit_some(checkpoint, model, model.layers, options);
}

Audit audit_layers(const checkpoint::Checkpoint& checkpoint, const Model& model, std::span<const std::size_t> layers,
                   const Options& options) {
  if (options.run) refuse("run: came with some of the layers, but a model runs through all of them");
  std::vector<Attention> some;
  for (const std::size_t layer : layers) {
    if (layer >= model.layers.size()) refuse("layers: {}, but there are {}", layer, model.layers.size());
    some.push_back(model.layers[layer]);
  }
  if (some.empty()) {  // nothing is read
    Audit none;
    none.model = model;
    none.model.layers.clear();
    set_contexts(model, options, none);
    return none;
  }
  return audit_some(checkpoint, model, std::move(some), options);
}

}  // namespace rootdk::audit
