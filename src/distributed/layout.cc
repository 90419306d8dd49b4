// Cutting a sequence: runs, zigzag, and packed documents dealt out by their work.
#include "rootdk/distributed/layout.h"

#include <algorithm>
#include <functional>
#include <queue>
#include <tuple>

#include "base/refuse.h"

namespace rootdk::distributed {

using base::refuse;

namespace {

std::int64_t total(const Pieces& pieces) {
  std::int64_t sum = 0;
  for (const Piece& piece : pieces) sum += piece.length();
  return sum;
}

void check_ranks(int ranks) {
  if (ranks < 1) refuse("layout: {} ranks, but at least 1 is wanted", ranks);
}

/// Where the i-th of `parts` parts begins.
std::int64_t cut(std::int64_t length, std::int64_t i, std::int64_t parts) {
  return length / parts * i + length % parts * i / parts;
}

/// Visible pairs of the queries of a piece, in a document of `length` tokens that begins at 0.
double work_of(const Piece& piece, std::int64_t length, bool causal) {
  const auto sum_below = [](std::int64_t n) { return static_cast<double>(n) * static_cast<double>(n + 1) / 2; };
  return causal ? sum_below(piece.end) - sum_below(piece.begin)
                : static_cast<double>(piece.length()) * static_cast<double>(length);
}

}  // namespace

Pieces joined(Pieces pieces) {
  std::sort(pieces.begin(), pieces.end(), [](const Piece& a, const Piece& b) { return a.begin < b.begin; });
  Pieces out;
  for (const Piece& piece : pieces) {
    if (piece.begin >= piece.end) continue;
    if (!out.empty() && out.back().end == piece.begin) out.back().end = piece.end;
    else out.push_back(piece);
  }
  return out;
}

std::int64_t Layout::length() const {
  std::int64_t sum = 0;
  for (const Pieces& mine : pieces) sum += total(mine);
  return sum;
}

std::int64_t Layout::length(int rank) const { return total(pieces.at(static_cast<std::size_t>(rank))); }

void Layout::check() const {
  check_ranks(ranks());
  Pieces all;
  for (std::size_t rank = 0; rank < pieces.size(); ++rank)
    for (std::size_t i = 0; i < pieces[rank].size(); ++i) {
      const Piece& piece = pieces[rank][i];
      if (piece.begin < 0 || piece.begin >= piece.end || (i > 0 && piece.begin < pieces[rank][i - 1].end))
        refuse("layout: piece {} of rank {} is {} to {}, but ascending ones that hold a token are wanted", i, rank,
               piece.begin, piece.end);
      all.push_back(piece);
    }
  std::sort(all.begin(), all.end(), [](const Piece& a, const Piece& b) { return a.begin < b.begin; });
  std::int64_t place = 0;
  for (const Piece& piece : all) {
    if (piece.begin != place)
      refuse("layout: token {} is on {}", std::min(piece.begin, place), piece.begin < place ? "two ranks" : "none");
    place = piece.end;
  }
}

Layout Layout::contiguous(std::span<const std::int64_t> lengths) {
  Layout out;
  std::int64_t place = 0;
  for (const std::int64_t length : lengths) {
    if (length < 0) refuse("layout: rank {} holds {} tokens, but at least 0 is wanted", out.ranks(), length);
    out.pieces.push_back(joined({{place, place + length}}));
    place += length;
  }
  return out;
}

Layout Layout::even(std::int64_t length, int ranks) {
  check_ranks(ranks);
  Layout out;
  for (int r = 0; r < ranks; ++r) out.pieces.push_back(joined({{cut(length, r, ranks), cut(length, r + 1, ranks)}}));
  return out;
}

Layout Layout::zigzag(std::int64_t length, int ranks) {
  check_ranks(ranks);
  const std::int64_t parts = 2 * static_cast<std::int64_t>(ranks);
  const auto part = [&](std::int64_t i) { return Piece{cut(length, i, parts), cut(length, i + 1, parts)}; };
  Layout out;
  for (int r = 0; r < ranks; ++r) out.pieces.push_back(joined({part(r), part(parts - 1 - r)}));
  return out;
}

Layout Layout::dealt(std::span<const std::int64_t> starts, int ranks, bool causal) {
  check_ranks(ranks);
  if (starts.size() < 2 || starts[0] != 0 || !std::is_sorted(starts.begin(), starts.end()))
    refuse("documents: starts from 0, ascending, and the end are wanted");
  const auto document = [&](std::size_t d) { return Piece{starts[d], starts[d + 1]}; };
  const auto whole_work = [&](std::size_t d) {
    return work_of({0, document(d).length()}, document(d).length(), causal);
  };
  const std::size_t documents = starts.size() - 1;
  double share = 0;
  for (std::size_t d = 0; d < documents; ++d) share += whole_work(d) / ranks;

  Layout out;
  out.pieces.resize(static_cast<std::size_t>(ranks));
  std::vector<double> load(out.pieces.size());
  std::vector<std::size_t> whole;
  constexpr double kParts = 16;  // what is larger than a share over this is cut
  for (std::size_t d = 0; d < documents; ++d) {
    const auto [begin, end] = document(d);
    if (begin == end) continue;
    if (whole_work(d) * kParts <= share || ranks == 1) {
      whole.push_back(d);
      continue;
    }
    const Layout parts = causal ? zigzag(end - begin, ranks) : even(end - begin, ranks);
    for (std::size_t r = 0; r < parts.pieces.size(); ++r) {
      const std::size_t rank = (r + d) % parts.pieces.size();  // so that roundings do not always meet the same one
      for (const Piece& piece : parts.pieces[r]) {
        out.pieces[rank].push_back({begin + piece.begin, begin + piece.end});
        load[rank] += work_of(piece, end - begin, causal);
      }
    }
  }
  std::stable_sort(whole.begin(), whole.end(),
                   [&](std::size_t a, std::size_t b) { return whole_work(a) > whole_work(b); });
  using Least = std::tuple<double, std::int64_t, std::size_t>;  // work, tokens, rank
  std::priority_queue<Least, std::vector<Least>, std::greater<>> least;
  for (std::size_t r = 0; r < load.size(); ++r) least.emplace(load[r], total(out.pieces[r]), r);
  for (const std::size_t d : whole) {
    const auto [so_far, tokens, rank] = least.top();
    least.pop();
    out.pieces[rank].push_back(document(d));
    least.emplace(so_far + whole_work(d), tokens + document(d).length(), rank);
  }
  for (Pieces& mine : out.pieces) mine = joined(std::move(mine));
  return out;
}

Layout Layout::over(int group) const {
  if (group < 1 || ranks() % group != 0)
    refuse("ranks_per_node: {}, which does not divide the {} ranks", group, ranks());
  Layout out;
  for (std::size_t first = 0; first < pieces.size(); first += static_cast<std::size_t>(group)) {
    Pieces all;
    for (std::size_t r = first; r < first + static_cast<std::size_t>(group); ++r)
      all.insert(all.end(), pieces[r].begin(), pieces[r].end());
    out.pieces.push_back(joined(std::move(all)));
  }
  return out;
}

}  // namespace rootdk::distributed
