// What was probably meant by a word that is not known: for messages.
#pragma once

#include <algorithm>
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace rootdk::base {

namespace nearest_detail {

/// As words are compared: without case, and without the dashes that options begin with.
inline std::string plain(std::string_view word) {
  std::string out(word.substr(std::min(word.find_first_not_of('-'), word.size())));
  for (char& c : out)
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  return out;
}

/// Fewest letters to insert, drop, replace, or swap with their neighbour, no letter twice, to get from one word to the
/// other.
inline std::size_t edits(std::string_view a, std::string_view b) {
  std::vector<std::size_t> two_above, above, row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    two_above = std::move(above), above = std::move(row);
    row.assign(b.size() + 1, i);
    for (std::size_t j = 1; j <= b.size(); ++j) {
      row[j] = std::min({above[j] + 1, row[j - 1] + 1, above[j - 1] + (a[i - 1] != b[j - 1])});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
        row[j] = std::min(row[j], two_above[j - 2] + 1);
    }
  }
  return row[b.size()];
}

}  // namespace nearest_detail

/// Those of `known` that `word` is closest to, in their order: at most a third of its letters away, or begun by at
/// least three of them. None, if it is close to none, or too many are equally close.
inline std::vector<std::string> nearest(std::string_view word, const std::vector<std::string>& known) {
  constexpr std::size_t kLongest = 64, kLeastBegun = 3, kMostEqual = 3;
  const std::string given = nearest_detail::plain(word);
  if (given.empty() || given.size() > kLongest) return {};
  std::size_t least = (given.size() + 2) / 3 + 1;
  std::vector<std::string> out, begun;
  for (const std::string& candidate : known) {
    const std::string other = nearest_detail::plain(candidate);
    if (given.size() >= kLeastBegun && other.starts_with(given)) begun.push_back(candidate);
    const std::size_t distance = nearest_detail::edits(given, other);
    if (distance > least || distance >= given.size() || (distance == least && out.empty())) continue;
    if (distance < least) out.clear();
    least = distance;
    out.push_back(candidate);
  }
  if (out.empty()) out = begun;
  return out.size() > kMostEqual ? std::vector<std::string>() : out;
}

/// "a", "a or b", "a, b or c".
inline std::string either(const std::vector<std::string>& words) {
  std::string out;
  for (std::size_t i = 0; i < words.size(); ++i)
    out += (i == 0 ? "" : i + 1 == words.size() ? " or " : ", ") + words[i];
  return out;
}

/// "; did you mean a or b?", or `otherwise`.
inline std::string did_you_mean(std::string_view word, const std::vector<std::string>& known,
                                std::string_view otherwise = "") {
  const std::vector<std::string> found = nearest(word, known);
  return found.empty() ? std::string(otherwise) : "; did you mean " + either(found) + "?";
}

}  // namespace rootdk::base
