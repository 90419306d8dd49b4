// Some layers at a time: read, project, meet. Then what softmax makes of it, for all heads at once.
#include <omp.h>

#include <Eigen/Cholesky>
#include <Eigen/Eigenvalues>
#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <memory>
#include <span>
#include <utility>

#include "audit/measure.h"
#include "audit/prediction.h"
#include "audit/weights.h"
#include "base/memory_errors.h"
#include "base/refuse.h"
#include "cpu/parallel.h"
#include "rootdk/audit/findings.h"
#include "rootdk/theory/gaussian_softmax.h"

namespace rootdk::audit {

using base::refuse;

namespace {

using Matrix = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

constexpr double kF16Largest = 65504, kBf16Roundoff = 0x1p-9;

std::vector<std::int64_t> contexts_for(const Model& model, const Options& options) {
  std::vector<std::int64_t> out = options.contexts;
  if (out.empty()) {
    std::int64_t own = 2;
    for (const Attention& a : model.layers) own = std::max(own, a.context);
    for (const std::int64_t n : {512, 4096, 32768, 131072})
      if (n < own) out.push_back(n);
    out.push_back(own);
  }
  for (const std::int64_t n : out)
    if (n < 2 || n > (std::int64_t{1} << 40)) refuse("contexts: {}, but numbers from 2 to 2^40 are wanted", n);
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
  theory::HeadTheory theory;  // with the variance that is reported in place of that over the context
  double sigma = 0;           // that softmax sees: after the soft-cap; measured where it was
  std::vector<RowSpread> rows = {};
};

void set_measured(const Attention& a, const std::vector<float>& q, const std::vector<float>& k, const Options& options, theory::Meeting meeting, Head& head) {
  meeting.distances = {};
  meeting.context = static_cast<std::int64_t>(q.size()) / a.dim_qk;
  const theory::HeadTheory found = theory::head_theory(moments_of(q, a.dim_qk), moments_of(k, a.dim_qk), meeting);
  Measured m;
  m.variance = found.within_row_variance;
  m.unit_divisor = std::sqrt(std::max(0.0, m.variance));
  m.ratio = m.unit_divisor / std::sqrt(static_cast<double>(a.dim_qk));
  m.sigma = m.unit_divisor * std::fabs(a.scale);
  m.sigma_over_isotropic = head.sigma > 0 ? m.sigma / head.sigma : Head::kUnknown;
  const LargestScores largest = largest_scores(a, q, k);
  m.largest_score = largest.magnitude;
  m.largest_raw = largest.raw;
  m.clip_factor = largest.raw > 0 ? std::min(1.0, options.clip_threshold / largest.raw) : 1;
  head.measured = m;
}

Draft draft_of(const Attention& a, const Side& q, const Side& k, const theory::Meeting& meeting, const Options& options, Head& head) {
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
  // Means make all rows wider by the same: that part does not vary from row to row.
  const double without_means = t.phase_average.value_or(t.alignment * static_cast<double>(a.dim_qk) * std::pow(t.sigma_q * t.sigma_k, 2));
  draft.rows = spread_of_rows(t.effective_rank * (without_means > 0 ? std::pow(head.variance / without_means, 2) : 1));
  return draft;
}

// A layer that is being looked at.
struct Open {
  Open(const checkpoint::Checkpoint& checkpoint, const Inputs* inputs, const Options& options, Layer& into, Draft* first)
      : layer(into), drafts(first), weights(checkpoint, into.attention), distances(distances_for(into.attention, options)),
        tokens(inputs != nullptr ? inputs->of(into.attention) : std::nullopt) {
    const Attention& a = layer.attention;
    meeting.scale = a.scale;
    meeting.rotation = {a.rotary.pairing, a.rotary.frequencies};
    meeting.context = a.context;
    meeting.distances = distances;
    keys.resize(static_cast<std::size_t>(a.heads_kv));
    layer.heads.resize(static_cast<std::size_t>(a.heads_q));
  }

  Layer& layer;
  Draft* drafts;  // of its heads
  LayerWeights weights;
  std::vector<double> distances;  // meeting looks at them
  theory::Meeting meeting;
  std::optional<Tokens> tokens;
  std::vector<Side> keys;  // of its key heads
};

void audit_head(const Options& options, Open& open, std::int64_t h) {
  const Attention& a = open.layer.attention;
  Head& head = open.layer.heads[static_cast<std::size_t>(h)];
  head.head = h;
  head.kv_head = h / (a.heads_q / a.heads_kv);
  Draft& draft = open.drafts[h];
  draft = draft_of(a, open.weights.side(Which::kQueries, h), open.keys[static_cast<std::size_t>(head.kv_head)], open.meeting, options, head);
  if (open.tokens && head.finite())
    set_measured(a, rows_on(open.weights, Which::kQueries, h, *open.tokens), rows_on(open.weights, Which::kKeys, head.kv_head, *open.tokens),
                 options, open.meeting, head);
  draft.sigma = capped(head.measured ? head.measured->sigma : head.sigma, a.soft_cap);
}

// Calls task(layer, head) for all of them, on all threads; `heads` says how many a layer has.
template <class Task>
void for_each_head(std::span<const std::unique_ptr<Open>> layers, std::int64_t Attention::*heads, const Task& task) {
  std::vector<std::pair<Open*, std::int64_t>> all;
  for (const auto& open : layers)
    for (std::int64_t h = 0; h < open->layer.attention.*heads; ++h) all.emplace_back(open.get(), h);
  cpu::parallel_tasks(static_cast<std::int64_t>(all.size()), omp_get_max_threads(), [&](std::int64_t i, int) {
    const auto& [open, h] = all[static_cast<std::size_t>(i)];
    task(*open, h);
  });
}

// Layers together, so that threads seldom wait for each other.
void audit_layers(const checkpoint::Checkpoint& checkpoint, const Inputs* inputs, const Options& options, std::span<Layer> layers, Draft* drafts) {
  std::vector<Draft*> firsts;
  for (const Layer& layer : layers) {
    firsts.push_back(drafts);
    drafts += layer.attention.heads_q;
  }
  std::vector<std::unique_ptr<Open>> open(layers.size());
  cpu::parallel_tasks(static_cast<std::int64_t>(open.size()), omp_get_max_threads(), [&](std::int64_t i, int) {
    const auto at = static_cast<std::size_t>(i);
    open[at] = std::make_unique<Open>(checkpoint, inputs, options, layers[at], firsts[at]);
  });
  for_each_head(open, &Attention::heads_kv, [](Open& o, std::int64_t h) { o.keys[static_cast<std::size_t>(h)] = o.weights.side(Which::kKeys, h); });
  for_each_head(open, &Attention::heads_q, [&](Open& o, std::int64_t h) { audit_head(options, o, h); });
}

// How much of a model is looked at in one go: bounds how long a wish to stop waits. In memory are only the heads that threads are at, and
// projections that are stored transposed, which are read whole: a layer that has such is looked at alone.
constexpr std::int64_t kBytesTogether = 256 << 20;

std::int64_t bytes_of(const Attention& a) {
  std::int64_t values = 0;
  for (const auto& [parts, heads] : {std::pair(&a.q, a.heads_q), std::pair(&a.k, a.heads_kv)})
    for (const Part& part : *parts) {
      if (part.transposed) return kBytesTogether;
      values += heads * part.rows * part.width;
    }
  return values * static_cast<std::int64_t>(sizeof(float));
}

// Where the layers end that are looked at together with layer `begin`.
std::size_t end_of_group(const std::vector<Attention>& layers, std::size_t begin) {
  std::int64_t bytes = bytes_of(layers[begin]);
  std::size_t end = begin + 1;
  while (end < layers.size() && (bytes += bytes_of(layers[end])) <= kBytesTogether) ++end;
  return end;
}

// How many keys a row of this layer sees in such a context.
double keys_in(const Attention& a, std::int64_t context, bool own) {
  std::int64_t keys = context;
  if (own) keys = std::min(keys, a.context);
  if (a.window) keys = std::min(keys, *a.window);
  return static_cast<double>(std::max<std::int64_t>(keys, 2));
}

theory::Judgement judgement_of(const Draft& draft, double keys, double entropy, DType dtype, const theory::Thresholds& thresholds) {
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
  if (head.measured) {
    e.raw_sigma = head.measured->sigma;
    e.raw_max = head.measured->largest_score;
    e.expected_sigma = head.sigma;
    e.dtype = dtype;
  }
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

void predict(const checkpoint::Checkpoint& checkpoint, const Options& options, Audit& audit, std::vector<Draft>& drafts) {
  struct Range {
    double least = std::numeric_limits<double>::infinity(), most = 0;
  };
  std::map<double, Range> wanted;  // by number of keys
  const bool own = options.contexts.empty();
  for (Draft& draft : drafts) {
    if (draft.head->finite()) draft.head->overflows = overflows(*draft.head);
    if (!draft.head->finite()) continue;
    const auto want = [&](std::int64_t context) {
      Range& range = wanted[keys_in(*draft.attention, context, own)];
      for (const RowSpread& row : draft.rows) {
        range.least = std::min(range.least, draft.sigma * row.factor);
        range.most = std::max(range.most, draft.sigma * row.factor);
      }
    };
    for (const std::int64_t n : audit.contexts) want(n);
    want(audit.judged_at);
  }
  std::map<double, PredictionTable> tables;
  for (const auto& [keys, range] : wanted) tables.emplace(keys, PredictionTable(keys, range.least, range.most));

  cpu::parallel_tasks(static_cast<std::int64_t>(drafts.size()), omp_get_max_threads(), [&](std::int64_t i, int) {
    const Draft& draft = drafts[static_cast<std::size_t>(i)];
    Head& head = *draft.head;
    const DType dtype = dtype_of(checkpoint, *draft.attention);
    const auto judged = [&](double keys, double entropy) { return judgement_of(draft, keys, entropy, dtype, options.thresholds); };
    if (!head.finite()) {
      head.judgement = judged(2, Head::kUnknown);
      return;
    }
    for (const std::int64_t n : audit.contexts) {
      const double keys = keys_in(*draft.attention, n, own);
      const Prediction p = tables.at(keys).at(draft.sigma, draft.rows);
      head.contexts.push_back({n, keys, draft.sigma / theory::critical_sigma(keys), p.entropy, 1 / p.sum_p2, p.p_max, judged(keys, p.entropy).verdict});
    }
    const double keys = keys_in(*draft.attention, audit.judged_at, own);
    head.judgement = judged(keys, tables.at(keys).at(draft.sigma, draft.rows).entropy);
  });
}

}  // namespace

Audit audit(const checkpoint::Checkpoint& checkpoint, const Model& model, const Options& options) {
  return base::with_memory_errors([&] {
    Audit out;
    out.model = model;
    out.contexts = contexts_for(model, options);
    out.judged_at = options.judge_at.value_or(out.contexts.back());
    if (out.judged_at < 2) refuse("at: {}, but at least 2 is wanted", out.judged_at);
    if (!(options.clip_threshold > 0))
      refuse("QK-clip: a threshold of {}, but a number above 0 is wanted", options.clip_threshold);
    std::unique_ptr<Inputs> inputs;
    if (!options.inputs.empty()) inputs = std::make_unique<Inputs>(options.inputs, model);

    std::size_t heads = 0;
    for (const Attention& attention : model.layers) {
      out.layers.push_back({attention, {}});
      heads += static_cast<std::size_t>(attention.heads_q);
    }
    std::vector<Draft> drafts(heads);  // they point into the layers
    std::size_t done = 0, drafted = 0;
    while (done < out.layers.size()) {
      if (options.stop && options.stop()) {
        out.complete = false;
        break;
      }
      const std::size_t end = end_of_group(model.layers, done);
      audit_layers(checkpoint, inputs.get(), options, std::span(out.layers).subspan(done, end - done), drafts.data() + drafted);
      for (; done < end; ++done) drafted += static_cast<std::size_t>(model.layers[done].heads_q);
      if (options.progress) options.progress(static_cast<double>(done) / static_cast<double>(out.layers.size()));
    }
    out.layers.resize(done);
    drafts.resize(drafted);
    predict(checkpoint, options, out, drafts);
    return out;
  });
}

}  // namespace rootdk::audit
