// One walk over the fields, for writing and for reading. Histograms are mostly zeros, so only what is not travels.
#include "distributed/stats_message.h"

#include <cstring>

#include "rootdk/error.h"

namespace rootdk::distributed {

namespace {

class Writer {
 public:
  template <class T>
  void number(const T& x) {
    const std::size_t at = bytes_.size();
    bytes_.resize(at + sizeof x);
    std::memcpy(bytes_.data() + at, &x, sizeof x);
  }
  void counts(const std::vector<std::int64_t>& x) {
    std::int64_t there = 0;
    for (const std::int64_t count : x) there += count != 0;
    number(static_cast<std::int64_t>(x.size())), number(there);
    for (std::size_t i = 0; i < x.size(); ++i)
      if (x[i] != 0) number(static_cast<std::int64_t>(i)), number(x[i]);
  }
  template <class T>
  void length(const std::vector<T>& x) {
    number(static_cast<std::int64_t>(x.size()));
  }
  std::vector<std::byte> bytes() { return std::move(bytes_); }

 private:
  std::vector<std::byte> bytes_;
};

class Reader {
 public:
  explicit Reader(std::span<const std::byte> bytes) : bytes_(bytes) {}
  template <class T>
  void number(T& x) {
    if (bytes_.size() < sizeof x) throw Error(ErrorCode::kInternal, "statistics: a message of another rank is short");
    std::memcpy(&x, bytes_.data(), sizeof x);
    bytes_ = bytes_.subspan(sizeof x);
  }
  void counts(std::vector<std::int64_t>& x) {
    std::int64_t there = 0;
    length(x), number(there);
    for (std::int64_t n = 0; n < there; ++n) {
      std::int64_t i = 0;
      number(i);
      number(x.at(static_cast<std::size_t>(i)));
    }
  }
  template <class T>
  void length(std::vector<T>& x) {
    std::int64_t size = 0;
    number(size);
    if (size < 0 || size > (std::int64_t{1} << 32))
      throw Error(ErrorCode::kInternal, "statistics: a message of another rank is not one");
    x.assign(static_cast<std::size_t>(size), T{});
  }

 private:
  std::span<const std::byte> bytes_;
};

template <class Archive, class Histogram>
void walk_histogram(Archive& a, Histogram& h) {
  a.number(h.low), a.number(h.high), a.counts(h.counts);
}

template <class Archive, class Sums>
void walk_sums(Archive& a, Sums& s) {
  a.number(s.xx), a.number(s.xn), a.number(s.nn);
}

template <class Archive, class Spread>
void walk_spread(Archive& a, Spread& s) {
  a.number(s.pairs), a.number(s.mean), a.number(s.m2), a.number(s.within_m2), a.number(s.within_degrees);
  a.number(s.min), a.number(s.max), a.number(s.max_query), a.number(s.max_key);
}

template <class Archive, class Head>
void walk_head(Archive& a, Head& h) {
#define ROOTDK_ROW_COUNT(level, name, when, doc) a.number(h.name);
#define ROOTDK_MAXIMUM(name, doc) a.number(h.name);
#define ROOTDK_MEAN(name, value, doc) a.number(h.name);
#define ROOTDK_SOFTMAX_MEAN(name, value, doc) a.number(h.softmax.name);
#define ROOTDK_SOFTMAX_COUNT(name, when, doc) a.number(h.softmax.rows_##name);
#define ROOTDK_HISTOGRAM(name, low, high, value, of, back, doc) walk_histogram(a, h.softmax.name);
#include "rootdk/statistics.def"
  walk_spread(a, h.raw), walk_spread(a, h.score);
  a.number(h.causes);
  a.number(h.blocks.all), a.number(h.blocks.seen);
  for (auto& sums : h.blocks.means) walk_sums(a, sums);
  walk_sums(a, h.blocks.raw_within_row_variance), walk_sums(a, h.blocks.score_within_row_variance);
  a.counts(h.gaps.counts);
  a.length(h.by_keys);
  for (auto& bucket : h.by_keys) a.number(bucket.from), walk_head(a, bucket.stats);
}

template <class Archive, class Stats>
void walk(Archive& a, Stats& stats) {
  a.number(stats.level), a.number(stats.batch), a.number(stats.heads);
  a.length(stats.per_head);
  for (auto& head : stats.per_head) walk_head(a, head);
}

}  // namespace

std::vector<std::byte> to_bytes(const Stats& stats) {
  Writer writer;
  walk(writer, stats);
  return writer.bytes();
}

Stats stats_from_bytes(std::span<const std::byte> bytes) {
  Reader reader(bytes);
  Stats stats;
  walk(reader, stats);
  return stats;
}

}  // namespace rootdk::distributed
