// Chunks of pairs summed in order: moments with intervals, histograms, the terms of (Σqᵢkᵢ)², random walks.
#include "rootdk/lab/variance.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "base/parallel.h"
#include "lab/draws.h"
#include "lab/need.h"
#include "rootdk/plan.h"
#include "rootdk/theory/dot_product.h"

namespace rootdk::lab {

namespace {

constexpr double kWithin95 = 1.959963984540054;  // standard deviations of a normal variable
constexpr std::int64_t kTermDim = 3;
constexpr std::int64_t kMostPlaces = 256;  // of a walk
constexpr std::size_t kHistogramSteps = 40;
constexpr double kHistogramReach = 5;  // expected standard deviations, to either side

// A chunk of pairs is a task; so many chunks are a wave, after which somebody may ask how far it is. Sums are added
// chunk by chunk in order, whoever computed them.
constexpr std::int64_t kPairsPerChunk = 16 * static_cast<std::int64_t>(kPairsPerBlock), kChunksPerWave = 64;

// Power sums of values about a point near their mean.
struct Sums {
  double n = 0, power[5] = {};

  void add(double x) {
    double power_of_x = 1;
    for (int r = 1; r <= 4; ++r) power[r] += power_of_x *= x;
    n += 1;
  }
  void merge(const Sums& other) {
    n += other.n;
    for (int r = 1; r <= 4; ++r) power[r] += other.power[r];
  }
  double mean() const { return power[1] / n; }
  double variance() const { return (power[2] - power[1] * power[1] / n) / (n - 1); }
  double fourth_central() const {
    const double m = mean();
    return (power[4] - 4 * m * power[3] + 6 * m * m * power[2]) / n - 3 * m * m * m * m;
  }
};

/// Equal steps from −reach to reach; the first place is what lies below them, the last what lies above.
struct Counts {
  std::array<std::int64_t, kHistogramSteps + 2> in = {};

  void add(double x, double reach) {
    constexpr auto kLast = static_cast<double>(kHistogramSteps + 1);
    const double place = std::floor((x + reach) / (2 * reach) * static_cast<double>(kHistogramSteps)) + 1;
    ++in[static_cast<std::size_t>(std::clamp(place, 0.0, kLast))];
  }
  void merge(const Counts& other) {
    for (std::size_t i = 0; i < in.size(); ++i) in[i] += other.in[i];
  }
};

/// All that is learned of one d_k: the product, and the product divided.
struct RowSums {
  Sums plain, over_root, over_dk;
  Counts counts;  ///< of the product; for one kind of component only
  void merge(const RowSums& other) {
    plain.merge(other.plain), over_root.merge(other.over_root), over_dk.merge(other.over_dk),
        counts.merge(other.counts);
  }
};

double fourth_moment(Component kind) {
  switch (kind) {
    case Component::kNormal: return 3;
    case Component::kUniform: return 9.0 / 5;
    case Component::kRademacher: return 1;
    case Component::kStudentT5: return 9;
  }
  return 3;
}

// E x², E x³, E x⁴ of μ + σ·a for a symmetric a of variance 1.
struct Moments {
  double first, second, third, fourth;
};
Moments moments_of(Component kind, double mean, double sigma) {
  const double m2 = mean * mean, s2 = sigma * sigma;
  return {mean, m2 + s2, mean * (m2 + 3 * s2), m2 * m2 + 6 * m2 * s2 + s2 * s2 * fourth_moment(kind)};
}

// Cumulants of q·k: those of one product qᵢkᵢ, d times.
struct Cumulants {
  double second, fourth;
};
Cumulants known_cumulants(const VarianceOptions& o, Component kind, std::int64_t dk) {
  const Moments q = moments_of(kind, o.mean, o.sigma_q), k = moments_of(kind, o.mean, o.sigma_k);
  const double m1 = q.first * k.first, m2 = q.second * k.second, m3 = q.third * k.third, m4 = q.fourth * k.fourth;
  const auto d = static_cast<double>(dk);
  return {d * (m2 - m1 * m1), d * (m4 - 4 * m1 * m3 - 3 * m2 * m2 + 12 * m1 * m1 * m2 - 6 * m1 * m1 * m1 * m1)};
}

PairLaw law_of(const VarianceOptions& o, Component kind) {
  return {kind,
          static_cast<float>(o.sigma_q),
          static_cast<float>(o.sigma_k),
          static_cast<float>(o.mean),
          static_cast<float>(o.correlation),
          o.seed};
}

double expected_mean(const VarianceOptions& o, std::int64_t dk) { return static_cast<double>(dk) * o.mean * o.mean; }

// d·Cov of the diagonal and d(d−1) times that beside it.
double over_pairs_of_components(std::int64_t dk, double beside) {
  const auto d = static_cast<double>(dk);
  return d + d * (d - 1) * beside;
}

/// A part of the work, for who watches it.
struct Share {
  double from, to;
  std::string what;
};

/// Runs visit(first pair, pairs, chunk's result) over all pairs, and merges the results in order. False if it was
/// stopped.
template <class Result, class Visit>
bool over_chunks(std::int64_t pairs, const Watch& watch, const Share& share, const Visit& visit, Result& total) {
  const std::int64_t chunks = (pairs + kPairsPerChunk - 1) / kPairsPerChunk;
  for (std::int64_t wave = 0; wave < chunks; wave += kChunksPerWave) {
    if (watch.stopped()) return false;
    watch.report(share.from + (share.to - share.from) * static_cast<double>(wave) / static_cast<double>(chunks),
                 share.what);
    std::vector<Result> parts(static_cast<std::size_t>(std::min(kChunksPerWave, chunks - wave)), total);
    base::parallel_tasks(static_cast<std::int64_t>(parts.size()), Machine::here().threads, [&](std::int64_t task, int) {
      Result& part = parts[static_cast<std::size_t>(task)];
      part.clear();
      const std::int64_t first = (wave + task) * kPairsPerChunk, end = std::min(first + kPairsPerChunk, pairs);
      for (std::int64_t block = first; block < end; block += static_cast<std::int64_t>(kPairsPerBlock))
        visit(static_cast<std::uint64_t>(block),
              static_cast<std::size_t>(std::min<std::int64_t>(end - block, static_cast<std::int64_t>(kPairsPerBlock))),
              part);
    });
    for (const Result& part : parts) total.merge(part);
  }
  return true;
}

template <class Each>
struct List {
  std::vector<Each> each;
  void clear() { each.assign(each.size(), Each{}); }
  void merge(const List& other) {
    for (std::size_t i = 0; i < each.size(); ++i) each[i].merge(other.each[i]);
  }
};

VarianceRow row_of(const VarianceOptions& o, Component kind, std::int64_t dk, const RowSums& sums) {
  VarianceRow row;
  row.component = kind;
  row.dk = dk;
  row.mean_expected = expected_mean(o, dk);
  row.expected = expected_variance(o, dk);
  row.mean = row.mean_expected + sums.plain.mean();
  row.variance = sums.plain.variance();
  row.after_sqrt_dk = sums.over_root.variance();
  row.after_dk = sums.over_dk.variance();
  Cumulants k = known_cumulants(o, kind, dk);
  if (o.correlation != 0) k = {row.variance, sums.plain.fourth_central() - 3 * row.variance * row.variance};
  const double n = sums.plain.n;
  const double of_mean = kWithin95 * std::sqrt(k.second / n);
  // Of ±1 the two cumulants all but cancel: never below what rounding leaves.
  const double of_variance = kWithin95 * std::sqrt(std::max(0.0, k.fourth / n + 2 * k.second * k.second / (n - 1)));
  row.mean_low = row.mean - of_mean, row.mean_high = row.mean + of_mean;
  row.low = row.variance - of_variance, row.high = row.variance + of_variance;
  return row;
}

double histogram_reach(const VarianceOptions& o, std::int64_t dk) {
  return kHistogramReach * std::sqrt(expected_variance(o, dk));
}

ProductHistogram histogram_of(const VarianceOptions& o, std::int64_t dk, const Counts& counts) {
  const double middle = expected_mean(o, dk), reach = histogram_reach(o, dk);
  return {dk,
          middle - reach,
          middle + reach,
          {counts.in.begin() + 1, counts.in.end() - 1},
          counts.in.front(),
          counts.in.back()};
}

// Where q·k is not centred the sums are taken about the expected mean, so that their powers stay small.
bool measure_kind(const VarianceOptions& o, Component kind, const std::vector<std::int64_t>& dims, const Watch& watch,
                  const Share& share, Variance& out) {
  const bool counted = kind == o.components.front();
  const DrawKernel& kernel = draw_kernels().front();
  const PairLaw law = law_of(o, kind);
  List<RowSums> total{std::vector<RowSums>(dims.size())};
  const auto visit = [&](std::uint64_t first, std::size_t pairs, List<RowSums>& part) {
    thread_local std::vector<float> products;
    products.resize(dims.size() * kPairsPerBlock);
    kernel.products(law, first, dims, products.data());
    for (std::size_t t = 0; t < dims.size(); ++t) {
      const double d = static_cast<double>(dims[t]), root = std::sqrt(d), middle = expected_mean(o, dims[t]);
      const double reach = histogram_reach(o, dims[t]);
      for (std::size_t p = 0; p < pairs; ++p) {
        const double x = products[t * kPairsPerBlock + p];
        part.each[t].plain.add(x - middle);
        part.each[t].over_root.add(x / root - middle / root);
        part.each[t].over_dk.add(x / d - middle / d);
        if (counted) part.each[t].counts.add(x - middle, reach);
      }
    }
  };
  if (!over_chunks(o.pairs, watch, share, visit, total)) return false;
  for (const std::int64_t dk : o.dk) {
    const auto at = static_cast<std::size_t>(std::lower_bound(dims.begin(), dims.end(), dk) - dims.begin());
    out.rows.push_back(row_of(o, kind, dk, total.each[at]));
    if (counted) out.histograms.push_back(histogram_of(o, dk, total.each[at].counts));
  }
  return true;
}

struct TermSums {
  Sums term[kTermDim][kTermDim];
  void clear() { *this = {}; }
  void merge(const TermSums& other) {
    for (int i = 0; i < kTermDim; ++i)
      for (int j = 0; j < kTermDim; ++j) term[i][j].merge(other.term[i][j]);
  }
};

double expected_term(const VarianceOptions& o, bool diagonal) {
  const auto second = [&](double sigma) { return (diagonal ? 1 : o.correlation) * sigma * sigma + o.mean * o.mean; };
  return second(o.sigma_q) * second(o.sigma_k);
}

bool measure_terms(const VarianceOptions& o, const Watch& watch, const Share& share, std::vector<SquareTerm>& terms) {
  const DrawKernel& kernel = draw_kernels().front();
  const PairLaw law = law_of(o, o.components.front());
  TermSums total;
  const auto visit = [&](std::uint64_t first, std::size_t pairs, TermSums& part) {
    float q[kTermDim * kPairsPerBlock], k[kTermDim * kPairsPerBlock];
    kernel.components(law, first, kTermDim, q, k);
    for (std::size_t p = 0; p < pairs; ++p) {
      double product[kTermDim];
      for (std::size_t i = 0; i < kTermDim; ++i)
        product[i] = static_cast<double>(q[i * kPairsPerBlock + p]) * static_cast<double>(k[i * kPairsPerBlock + p]);
      for (int i = 0; i < kTermDim; ++i)
        for (int j = 0; j < kTermDim; ++j) part.term[i][j].add(product[i] * product[j]);
    }
  };
  if (!over_chunks(o.pairs, watch, share, visit, total)) return false;
  for (int i = 0; i < kTermDim; ++i)
    for (int j = 0; j < kTermDim; ++j) {
      const Sums& sums = total.term[i][j];
      terms.push_back({i + 1, j + 1, sums.mean(), std::sqrt(sums.variance() / sums.n), expected_term(o, i == j)});
    }
  return true;
}

Walks walk(const VarianceOptions& o, std::int64_t longest) {
  Walks out;
  if (o.walks == 0) return out;
  const std::int64_t places = std::min(longest, kMostPlaces);
  for (std::int64_t i = 1; i <= places; ++i) out.terms.push_back(1 + (longest - 1) * i / places);
  out.terms.front() = 1;
  std::vector<float> products(out.terms.size() * kPairsPerBlock);
  draw_kernels().front().products(law_of(o, o.components.front()), 0, out.terms, products.data());
  out.sums.assign(static_cast<std::size_t>(o.walks), {});
  for (std::size_t p = 0; p < out.sums.size(); ++p)
    for (std::size_t t = 0; t < out.terms.size(); ++t)
      out.sums[p].push_back(static_cast<double>(products[t * kPairsPerBlock + p]));
  return out;
}

DividedNumbers divide_numbers() {
  DividedNumbers out;
  std::array<double, 3> divided = out.numbers;
  for (double& x : divided) x /= out.divisor;
  out.variance = theory::population_variance(out.numbers);
  out.variance_divided = theory::population_variance(divided);
  return out;
}

void check(const VarianceOptions& o) {
  want_all_between("dk", o.dk, 1, kMostDims);
  want_some("components", o.components);
  want_between("pairs", o.pairs, 2, std::int64_t{1} << 40);
  want_between("walks", o.walks, 0, static_cast<std::int64_t>(kPairsPerBlock));
  for (const auto& [name, value] : {std::pair{"sigma_q", o.sigma_q}, {"sigma_k", o.sigma_k}})
    if (!(value > 0 && value <= 1e6)) refuse("{}: {}, but a number above 0, at most 1e6, is wanted", name, value);
  if (!(std::fabs(o.mean) <= 1e6)) refuse("mean: {}, but a number from -1e6 to 1e6 is wanted", o.mean);
  if (!(o.correlation >= 0 && o.correlation <= 1))
    refuse("correlation: {}, but a number from 0 to 1 is wanted", o.correlation);
}

/// Ascending, each once.
std::vector<std::int64_t> dims_of(const VarianceOptions& o) {
  std::vector<std::int64_t> dims = o.dk;
  std::sort(dims.begin(), dims.end());
  dims.erase(std::unique(dims.begin(), dims.end()), dims.end());
  return dims;
}

// The sums of every chunk of a wave, and of all before it; the products that threads are at; what is found.
double bytes_of(const VarianceOptions& o) {
  const double chunks = std::min(real(kChunksPerWave), std::ceil(real(o.pairs) / real(kPairsPerChunk)));
  const double products =
      real(kPairsPerBlock) * sizeof(float) * std::min(chunks, static_cast<double>(Machine::here().threads));
  const double found = real(o.components.size()) * sizeof(VarianceRow) + sizeof(ProductHistogram) +
                       kHistogramSteps * sizeof(std::int64_t);
  return real(dims_of(o).size()) * ((1 + chunks) * sizeof(RowSums) + products) + real(o.dk.size()) * found;
}

}  // namespace

std::string_view name_of(Component component) {
  switch (component) {
    case Component::kNormal: return "normal";
    case Component::kUniform: return "uniform";
    case Component::kRademacher: return "rademacher";
    case Component::kStudentT5: return "student_t5";
  }
  return "unknown";
}

double expected_variance(const VarianceOptions& o, std::int64_t dk) {
  const double q2 = o.sigma_q * o.sigma_q, k2 = o.sigma_k * o.sigma_k, rho = o.correlation;
  return q2 * k2 * over_pairs_of_components(dk, rho * rho) +
         o.mean * o.mean * (q2 + k2) * over_pairs_of_components(dk, rho);
}

MemoryNeed memory_of(const VarianceOptions& options) {
  check(options);
  return need_of(
      options, [](const VarianceOptions& o) { return bytes_of(o); }, Size{"dk", &VarianceOptions::dk},
      Size{"components", &VarianceOptions::components});
}

Variance measure_variance(const VarianceOptions& options, const Watch& watch) {
  want_memory(memory_of(options));
  Variance out;
  out.options = options;
  out.intervals = options.correlation == 0 ? IntervalFrom::kKnownMoments : IntervalFrom::kMeasuredMoments;
  out.divided = divide_numbers();
  const std::vector<std::int64_t> dims = dims_of(options);
  out.walks = walk(options, dims.back());

  // A kind takes as long as its longest vectors; a Student t takes about three normals.
  const auto cost = [](Component kind) { return kind == Component::kStudentT5 ? 3.0 : 1.0; };
  double all = 0.02, done = 0;
  for (const Component kind : options.components) all += cost(kind);
  out.complete = measure_terms(options, watch, {0, 0.02 / all, "terms of a square"}, out.terms);
  done = 0.02;
  for (const Component kind : options.components) {
    if (!out.complete) break;
    const Share share = {done / all, (done + cost(kind)) / all,
                         fmt::format("{}, d_k up to {}", name_of(kind), dims.back())};
    out.complete = measure_kind(options, kind, dims, watch, share, out);
    done += cost(kind);
  }
  if (out.complete) watch.report(1);
  return out;
}

}  // namespace rootdk::lab
