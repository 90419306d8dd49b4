// base::visible_keys against the definitions in mask.h, asked one (query, key) pair at a time.
#include "base/visibility.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <vector>

#include "support/rng.h"

namespace rootdk::test {
namespace {

using Wide = double;  // cannot overflow, whatever the window, and exact wherever keys are

Wide real(std::int64_t x) { return static_cast<Wide>(x); }

struct Stand {
  Wide key = 0;           ///< where the query stands among the keys
  Wide from = 0, to = 0;  ///< the keys of its document
};

/// Where query i stands; nothing if it belongs to no document, or is padding.
std::optional<Stand> stand_of(const Mask& mask, const Shape& s, std::int64_t batch, std::int64_t i) {
  if (!mask.query_lengths.empty() && i >= mask.query_lengths[static_cast<std::size_t>(batch)]) return {};
  Wide first_query = 0, queries = real(s.len_q), first_key = 0, keys = real(s.len_kv);
  if (mask.documents) {
    auto q = mask.documents->q_starts, kv = mask.documents->kv_starts;
    if (mask.documents->items > 0) {
      const std::size_t count = q.size() / static_cast<std::size_t>(s.batch),
                        first = static_cast<std::size_t>(batch) * count;
      q = q.subspan(first, count), kv = kv.subspan(first, count);
    }
    bool found = false;
    for (std::size_t d = 0; d + 1 < q.size(); ++d)
      if (q[d] <= i && i < q[d + 1]) {
        first_query = real(q[d]), queries = real(q[d + 1] - q[d]), first_key = real(kv[d]),
        keys = real(kv[d + 1] - kv[d]);
        found = true;
      }
    if (!found) return {};
  }
  Wide offset = 0;
  switch (mask.diagonal.kind) {
    case Diagonal::Kind::kBottomRight: offset = keys - queries; break;
    case Diagonal::Kind::kTopLeft: offset = 0; break;
    case Diagonal::Kind::kLastKey:
      if (!mask.query_lengths.empty()) queries = real(mask.query_lengths[static_cast<std::size_t>(batch)]);
      offset = real(mask.key_lengths[static_cast<std::size_t>(batch)]) - queries;
      break;
    case Diagonal::Kind::kAt: offset = real(mask.diagonal.offset); break;
  }
  return Stand{first_key + (real(i) - first_query) + offset, first_key, first_key + keys};
}

bool sees(const Mask& mask, const std::optional<Stand>& stand, std::int64_t batch, std::int64_t j) {
  if (!stand) return false;
  const Wide key = real(j);
  if (key < stand->from || key >= stand->to) return false;
  if (!mask.key_starts.empty() && j < mask.key_starts[static_cast<std::size_t>(batch)]) return false;
  if (!mask.key_lengths.empty() && j >= mask.key_lengths[static_cast<std::size_t>(batch)]) return false;
  if (mask.causal && key > stand->key) return false;
  if (mask.window && (key < stand->key - real(mask.window->left) || key > stand->key + real(mask.window->right)))
    return false;
  return true;
}

/// A mask with the arrays it points into.
struct Drawn {
  Shape shape;
  Mask mask;
  std::vector<std::int64_t> starts, lengths, queries, q_starts, kv_starts;
};

std::vector<std::int64_t> draw_starts(Rng& rng, std::int64_t length, std::int64_t documents) {
  std::vector<std::int64_t> starts = {0};
  for (std::int64_t d = 0; d < documents; ++d) starts.push_back(rng.integer(0, length));  // repeats: empty documents
  std::sort(starts.begin(), starts.end());
  return starts;  // rows beyond the last one are likely
}

std::int64_t draw_reach(Rng& rng, std::int64_t length) {
  if (rng.chance(0.2)) return Window::kUnbounded;
  if (rng.chance(0.1)) return Window::kUnbounded - rng.integer(0, 3);
  return rng.integer(0, length + 2);
}

void draw(Rng& rng, Drawn& d) {
  d.shape.batch = rng.integer(1, 3);
  d.shape.len_q = rng.integer(1, 14);
  d.shape.len_kv = rng.integer(0, 14);
  const Shape& s = d.shape;
  d.mask.causal = rng.chance(0.5);
  if (rng.chance(0.5)) d.mask.window = Window{draw_reach(rng, s.len_kv), draw_reach(rng, s.len_kv)};
  if (rng.chance(0.4))
    for (std::int64_t b = 0; b < s.batch; ++b) d.lengths.push_back(rng.integer(0, s.len_kv));
  if (rng.chance(0.4)) {
    const std::int64_t documents = rng.integer(0, 5);
    const bool per_item = rng.chance(0.5);
    for (std::int64_t b = 0; b < (per_item ? s.batch : 1); ++b)
      for (auto [starts, length] : {std::pair(&d.q_starts, s.len_q), std::pair(&d.kv_starts, s.len_kv)}) {
        const std::vector<std::int64_t> drawn = draw_starts(rng, length, documents);
        starts->insert(starts->end(), drawn.begin(), drawn.end());
      }
    d.mask.documents = Documents{d.q_starts, d.kv_starts, per_item ? s.batch : 0};
  }
  if (rng.chance(0.3))
    for (std::int64_t b = 0; b < s.batch; ++b) d.starts.push_back(rng.integer(0, s.len_kv));
  if (rng.chance(0.3))
    for (std::int64_t b = 0; b < s.batch; ++b) d.queries.push_back(rng.integer(0, s.len_q));
  d.mask.key_starts = d.starts, d.mask.key_lengths = d.lengths, d.mask.query_lengths = d.queries;
  constexpr std::int64_t kFarthest = std::int64_t{1} << 29;  // what validation lets through
  switch (rng.integer(0, 4)) {
    case 0: d.mask.diagonal = Diagonal::top_left(); break;
    case 1: d.mask.diagonal = Diagonal::at(rng.integer(-s.len_q - 2, s.len_kv + 2)); break;
    case 2: d.mask.diagonal = Diagonal::at(rng.chance(0.5) ? kFarthest : -kFarthest); break;
    case 3:
      if (!d.lengths.empty() && !d.mask.documents) d.mask.diagonal = Diagonal::last_key();
      break;
    default: break;
  }
}

TEST(Visibility, TheRunOfKeysIsWhatTheDefinitionsSay) {
  std::int64_t some = 0, none = 0, homeless = 0;
  for (std::uint64_t seed = 0; seed < 5000 && !HasFailure(); ++seed) {
    Rng rng(seed);
    Drawn d;
    draw(rng, d);
    for (std::int64_t b = 0; b < d.shape.batch; ++b)
      for (std::int64_t i = 0; i < d.shape.len_q; ++i) {
        const base::KeyRange range = base::visible_keys(d.mask, d.shape, b, i);
        const std::optional<Stand> stand = stand_of(d.mask, d.shape, b, i);
        std::int64_t count = 0;
        for (std::int64_t j = 0; j < d.shape.len_kv; ++j) {
          const bool visible = sees(d.mask, stand, b, j);
          EXPECT_EQ(range.begin <= j && j < range.end, visible)
              << "seed " << seed << ", item " << b << ", query " << i << ", key " << j;
          count += visible;
        }
        // Nothing beyond the keys is promised either, and an empty run is one that is easily seen to be.
        EXPECT_EQ(range.end - range.begin, count) << "seed " << seed << ", item " << b << ", query " << i;
        EXPECT_EQ(range.empty(), count == 0);
        if (count > 0) {
          EXPECT_EQ(range.position, static_cast<std::int64_t>(stand->key))
              << "seed " << seed << ", item " << b << ", query " << i;
        }
        ++(count > 0 ? some : none);
        homeless += !stand;
      }
  }
  // The draws must reach what they are meant to.
  EXPECT_GT(some, 0);
  EXPECT_GT(none, 0);
  EXPECT_GT(homeless, 0);
}

TEST(Visibility, WithoutDocumentsQueriesThatSeeAndKeysThatAreSeenAreRuns) {
  std::int64_t some = 0, none = 0;
  for (std::uint64_t seed = 0; seed < 5000 && !HasFailure(); ++seed) {
    Rng rng(seed);
    Drawn d;
    draw(rng, d);
    if (d.mask.documents) continue;
    for (std::int64_t b = 0; b < d.shape.batch; ++b) {
      const base::Seen seen = base::seen_of(base::view_of(d.mask, d.shape), b);
      std::vector<bool> looks(static_cast<std::size_t>(d.shape.len_q)), shown(static_cast<std::size_t>(d.shape.len_kv));
      for (std::int64_t i = 0; i < d.shape.len_q; ++i)
        for (std::int64_t j = 0; j < d.shape.len_kv; ++j)
          if (sees(d.mask, stand_of(d.mask, d.shape, b, i), b, j))
            looks[static_cast<std::size_t>(i)] = shown[static_cast<std::size_t>(j)] = true;
      for (std::size_t i = 0; i < looks.size(); ++i)
        EXPECT_EQ(seen.queries.begin <= static_cast<std::int64_t>(i) && static_cast<std::int64_t>(i) < seen.queries.end,
                  looks[i])
            << "seed " << seed << ", item " << b << ", query " << i;
      for (std::size_t j = 0; j < shown.size(); ++j)
        EXPECT_EQ(seen.keys.begin <= static_cast<std::int64_t>(j) && static_cast<std::int64_t>(j) < seen.keys.end,
                  shown[j])
            << "seed " << seed << ", item " << b << ", key " << j;
      ++(seen.keys.begin < seen.keys.end ? some : none);
    }
  }
  EXPECT_GT(some, 0);
  EXPECT_GT(none, 0);
}

TEST(Visibility, NothingLiesBehindTheEndOfKeysAndInt32SaysTheSame) {
  for (std::uint64_t seed = 0; seed < 5000 && !HasFailure(); ++seed) {
    Rng rng(seed);
    Drawn d;
    draw(rng, d);
    const base::MaskView view = base::view_of(d.mask, d.shape);
    const bool near = std::abs(d.mask.diagonal.offset) <= std::int64_t{1} << 28;
    for (std::int64_t b = 0; b < d.shape.batch; ++b) {
      const std::int64_t end = base::end_of_keys(view, b);
      for (std::int64_t i = 0; i < d.shape.len_q; ++i) {
        const base::KeyRange range = base::visible_keys(view, b, i);
        EXPECT_LE(range.end, end) << "seed " << seed << ", item " << b << ", query " << i;
        if (near) {
          const base::KeyRangeOf<int> narrow = base::visible_keys(view, b, static_cast<int>(i));
          EXPECT_TRUE(narrow.begin == range.begin && narrow.end == range.end && narrow.position == range.position &&
                      narrow.origin == range.origin)
              << "seed " << seed << ", item " << b << ", query " << i;
        }
        if (base::has_padding(d.mask)) continue;
        const base::KeyRange same = base::visible_keys<base::MaskParts::kUnpadded>(view, b, i);
        EXPECT_TRUE(same.begin == range.begin && same.end == range.end && same.position == range.position)
            << "seed " << seed << ", item " << b << ", query " << i;
      }
    }
  }
}

TEST(Visibility, RowsAreAlikeWhereAllQueriesSeeTheSame) {
  bool claimed = false, denied = false;
  for (std::uint64_t seed = 0; seed < 5000; ++seed) {
    Rng rng(seed);
    Drawn d;
    draw(rng, d);
    (base::rows_alike(d.mask) ? claimed : denied) = true;
    if (!base::rows_alike(d.mask)) continue;
    for (std::int64_t b = 0; b < d.shape.batch; ++b)
      for (std::int64_t i = 0; i < d.shape.len_q; ++i)
        for (std::int64_t j = 0; j < d.shape.len_kv; ++j)
          EXPECT_EQ(sees(d.mask, stand_of(d.mask, d.shape, b, i), b, j),
                    sees(d.mask, stand_of(d.mask, d.shape, b, 0), b, j))
              << "seed " << seed;
  }
  EXPECT_TRUE(claimed && denied);
}

TEST(Visibility, SeesEverythingIsNeverClaimedWrongly) {
  bool claimed = false, denied = false;
  for (std::uint64_t seed = 0; seed < 5000; ++seed) {
    Rng rng(seed);
    Drawn d;
    draw(rng, d);
    (base::sees_everything(d.mask) ? claimed : denied) = true;
    if (!base::sees_everything(d.mask)) continue;
    for (std::int64_t b = 0; b < d.shape.batch; ++b)
      for (std::int64_t i = 0; i < d.shape.len_q; ++i)
        for (std::int64_t j = 0; j < d.shape.len_kv; ++j)
          EXPECT_TRUE(sees(d.mask, stand_of(d.mask, d.shape, b, i), b, j)) << "seed " << seed;
  }
  EXPECT_TRUE(claimed && denied);
  EXPECT_TRUE(base::sees_everything(Mask::none()));
}

}  // namespace
}  // namespace rootdk::test
