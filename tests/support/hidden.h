// What a mask hides must not matter: memory that nothing sees may hold anything. Fills such memory with NaN, infinities
// and the largest numbers there are, or with zeros, so that two runs can be held against each other bit by bit.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "support/case.h"
#include "support/run_case.h"

namespace rootdk::test {

enum class Filling { kZeros, kPoison };

/// Who sees whom.
class Sight {
 public:
  explicit Sight(const Case& c);

  bool sees(std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t j) const;
  /// Whether a query sees any key.
  bool query(std::int64_t b, std::int64_t h, std::int64_t i) const {
    return queries_[index(b, h, i, case_.shape.heads_q, case_.shape.len_q)];
  }
  /// Whether a row of any head that reads this key sees it.
  bool key(std::int64_t b, std::int64_t kv_head, std::int64_t j) const {
    return keys_[index(b, kv_head, j, case_.shape.heads_kv, case_.shape.len_kv)];
  }
  /// Whether anything is hidden from all.
  bool hides() const { return hides_; }

 private:
  static std::size_t index(std::int64_t b, std::int64_t h, std::int64_t l, std::int64_t heads, std::int64_t length) {
    return static_cast<std::size_t>((b * heads + h) * length + l);
  }

  const Case& case_;
  std::vector<bool> queries_, keys_;  ///< [batch, heads_q, len_q], [batch, heads_kv, len_kv]
  bool hides_ = false;
};

/// Fills what nothing sees: rows of K and V that no query of their group sees (in pages, those that no table leads to,
/// too), rows of Q and dO that see no key, their gradients of lse (unless a sink, which they see, passes those on),
/// biases and bytes of a boolean mask that other masks leave without effect. Who sees whom stays as it is. True if
/// there was anything to fill.
bool fill_hidden(Case& c, const Sight& sight, Filling with, std::uint64_t seed = 0);

/// Gradients of what is hidden are exactly 0; else which are not.
std::string hidden_gradients(const Case& c, const Sight& sight, const Result& r);

/// One row of K, V, Q or dO that something sees, and all that it can reach: rows that see it, and keys that those rows
/// see.
class Stain {
 public:
  Stain(const Case& c, const Sight& sight, std::uint64_t seed);

  /// False if nothing in the case sees anything.
  bool found() const { return found_; }
  void fill(Case& c, Filling with, std::uint64_t seed = 0) const;
  /// What is out of its reach has the same bits in both results; else where it has not.
  std::string spread(const Result& zeros, const Result& poisoned) const;
  std::string where() const;

 private:
  enum class Row { kQuery, kGradient, kKey, kValue, kBoth };

  const Case& case_;
  Row row_;
  bool found_ = false;
  std::int64_t item_ = 0, head_ = 0, place_ = 0;  ///< indices into the tensor: a page, where there are pages
  std::vector<bool> rows_, keys_,
      heads_;  ///< [batch, heads_q, len_q], [batch, heads_kv, len_kv], [batch, heads_q] that it can reach
};

}  // namespace rootdk::test
