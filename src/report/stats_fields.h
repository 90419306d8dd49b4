// The fields of every statistics struct, once for writing and reading: `Io` is a Writer and the struct is const, or a
// Reader.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string_view>
#include <type_traits>

#include "report/json_io.h"
#include "report/stats_derived.h"
#include "rootdk/stats.h"

namespace rootdk::report {

inline constexpr Range kAxis = {0, std::numeric_limits<std::int32_t>::max()};  ///< two multiplied fit 64 bits
inline constexpr Range kIndex = {-1, std::numeric_limits<std::int64_t>::max()};
inline constexpr std::size_t kMostBuckets = 64;

inline constexpr const char* kLevelNames[] = {"none", "basic", "full"};  // in the order of StatsLevel

// What is left out ---------------------------------------------------------------------------------------------------

/// A struct that is not in the document, as reading leaves it: it saw nothing.
template <class T>
T absent() {
  T value = {};
  if constexpr (std::is_base_of_v<SoftmaxMeans, T>)
    for (double SoftmaxMeans::*mean : SoftmaxMeans::all()) value.*mean = std::numeric_limits<double>::quiet_NaN();
  return value;
}

/// An object that is left out where it would be that of absent().
template <class Io, class T, class Visit>
void optional_object(Io& io, std::string_view name, T& value, const Visit& visit) {
  const auto nothing = absent<std::remove_const_t<T>>();
  if constexpr (Io::kReads) {
    if (!io.has(name)) return static_cast<void>(value = nothing);
  } else {
    const auto text = [&](const T& what) {
      nlohmann::ordered_json node;
      Writer writer(node, {&io.place(), name});
      visit(writer, what);
      return node.dump();  // as text: 0.0 is not -0.0
    };
    if (text(value) == text(nothing)) return;
  }
  io.object(name, value, visit);
}

/// A histogram that is left out where nothing was ever added.
template <class Io, class Histogram, class Visit>
void optional_histogram(Io& io, std::string_view name, Histogram& h, const Visit& visit) {
  if constexpr (Io::kReads) {
    if (!io.has(name)) return h.counts.clear();
  } else if (h.counts.empty()) {
    return;
  }
  io.object(name, h, visit);
}

// Fields -------------------------------------------------------------------------------------------------------------

template <class Io, class Spread>
void spread_fields(Io& io, Spread& s) {
  io.count("pairs", s.pairs);
  io.number("mean", s.mean);
  io.size("m2", s.m2);
  io.size("within_m2", s.within_m2);
  io.count("within_degrees", s.within_degrees);
  io.number("min", s.min);
  io.number("max", s.max);
  io.whole("max_query", s.max_query, kIndex);
  io.whole("max_key", s.max_key, kIndex);
}

/// The grid is the format's, written for other readers: histograms of two grids could not be merged.
template <class Io, class Histogram>
void histogram(Io& io, std::string_view name, Histogram& h, double low, double high) {
  if constexpr (!Io::kReads)
    if (h.low != low || h.high != high)
      base::refuse("{}: from {} to {}, but from {} to {} is wanted", Place{&io.place(), name}.path(), h.low, h.high,
                   low, high);
  optional_histogram(io, name, h, [&](auto& inner, auto& self) {
    inner.constant("low", low);
    inner.constant("high", high);
    inner.constant("bins", Histogram::kBins);
    inner.sparse("counts", self.counts, Histogram::kBins);
  });
}

template <class Io, class Gaps>
void gap_histogram(Io& io, std::string_view name, Gaps& gaps) {
  optional_histogram(io, name, gaps, [](auto& inner, auto& self) {
    inner.constant("per_octave", Gaps::kPerOctave);
    inner.constant("lowest", Gaps::kLowest);
    inner.constant("highest", Gaps::kHighest);
    inner.sparse("counts", self.counts, Gaps::kBins);
  });
}

template <class Io, class Softmax>
void softmax_fields(Io& io, Softmax& s) {
#define ROOTDK_SOFTMAX_MEAN(name, value, doc) io.number(#name, s.name);
#define ROOTDK_SOFTMAX_COUNT(name, when, doc) io.count("rows_" #name, s.rows_##name);
#define ROOTDK_HISTOGRAM(name, low, high, value, of, back, doc) histogram(io, #name, s.name, low, high);
#include "rootdk/statistics.def"
}

template <class Io, class AnyCauses>
void causes_fields(Io& io, AnyCauses& c) {
  io.size("weight", c.weight);
  io.size("dim", c.dim);
  io.size("q_square", c.q_square);
  io.size("k_variance", c.k_variance);
  io.size("key_mean_square", c.key_mean_square);
  io.size("scale_square", c.scale_square);
}

template <class Io, class Blocks>
void blocks_fields(Io& io, Blocks& b) {
  const auto sums = [](auto& inner, auto& s) {
    inner.size("xx", s.xx);
    inner.number("xn", s.xn);
    inner.size("nn", s.nn);
  };
  io.count("all", b.all);
  io.count("seen", b.seen);
  for (std::size_t i = 0; i < b.means.size(); ++i) io.object(SoftmaxMeans::names()[i], b.means[i], sums);
  io.object("raw_within_row_variance", b.raw_within_row_variance, sums);
  io.object("score_within_row_variance", b.score_within_row_variance, sums);
}

template <class Io, class Head>
void head_fields(Io& io, Head& h, bool is_bucket = false);

template <class Io, class Buckets>
void buckets(Io& io, std::string_view name, Buckets& by_keys) {
  if constexpr (Io::kReads) {
    if (!io.has(name)) return by_keys.clear();
  } else if (by_keys.empty()) {
    return;
  }
  std::int64_t next = 0;  // they ascend
  io.objects(name, by_keys, kMostBuckets, [&](auto& inner, auto& bucket) {
    inner.whole("from", bucket.from, {next, std::int64_t{1} << 62});
    if (bucket.from != 0 && !std::has_single_bit(static_cast<std::uint64_t>(bucket.from)))
      base::refuse("{}: {}, but 0 or a power of two is wanted", Place{&inner.place(), "from"}.path(), bucket.from);
    next = bucket.from + 1;
    head_fields(inner, bucket.stats, true);
  });
}

template <class Io, class Head>
void head_fields(Io& io, Head& h, bool is_bucket) {
#define ROOTDK_ROW_COUNT(level, name, when, doc) io.count(#name, h.name);
#define ROOTDK_MAXIMUM(name, doc) io.number(#name, h.name);
#define ROOTDK_MEAN(name, value, doc) io.number(#name, h.name);
#include "rootdk/statistics.def"
  const auto spread = [](auto& inner, auto& s) { spread_fields(inner, s); };
  optional_object(io, "raw", h.raw, spread);
  optional_object(io, "score", h.score, spread);
  optional_object(io, "softmax", h.softmax, [](auto& inner, auto& s) { softmax_fields(inner, s); });
  optional_object(io, "causes", h.causes, [](auto& inner, auto& c) { causes_fields(inner, c); });
  optional_object(io, "blocks", h.blocks, [](auto& inner, auto& b) { blocks_fields(inner, b); });
  gap_histogram(io, "gaps", h.gaps);
  if (!is_bucket) buckets(io, "by_keys", h.by_keys);
  if constexpr (!Io::kReads) {
    if (is_bucket && !h.by_keys.empty())
      base::refuse("{}: buckets inside a bucket", Place{&io.place(), "by_keys"}.path());
    if (h.rows_sampled > 0) io.node()["derived"] = derived(h);
  }
}

/// One element per batch item and head, or none at all.
template <class Io, class Any>
void check_heads(Io& io, const Any& stats) {
  const auto heads = static_cast<std::int64_t>(stats.per_head.size());
  if (heads != 0 && heads != stats.batch * stats.heads)
    base::refuse("{}: {} elements, but {} (batch {}, heads {}) are wanted", Place{&io.place(), "per_head"}.path(),
                 heads, stats.batch * stats.heads, stats.batch, stats.heads);
}

template <class Io, class AnyStats>
void stats_fields(Io& io, AnyStats& stats) {
  io.choice("level", stats.level, kLevelNames);
  io.whole("batch", stats.batch, kAxis);
  io.whole("heads", stats.heads, kAxis);
  io.objects("per_head", stats.per_head, kLongest, [](auto& inner, auto& head) { head_fields(inner, head); });
  check_heads(io, stats);
}

template <class Io, class AnyGradients>
void gradient_fields(Io& io, AnyGradients& stats) {
  io.whole("batch", stats.batch, kAxis);
  io.whole("heads", stats.heads, kAxis);
  io.objects("per_head", stats.per_head, kLongest, [](auto& inner, auto& head) {
#define ROOTDK_GRADIENT(sign, name, doc) inner.sign(#name, head.name);
#include "rootdk/statistics.def"
  });
  check_heads(io, stats);
}

}  // namespace rootdk::report
