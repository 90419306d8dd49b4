// The two lists read from front to back, into a Problem. For the compiled module and for the operators of torch.
#include "description.h"

#include <algorithm>
#include <iterator>
#include <optional>
#include <string>

#include "base/refuse.h"
#include "base/visibility.h"

namespace rootdk::python {

namespace {

using base::refuse;

constexpr std::int64_t kUnbounded = -1, kAbsent = -1;

/// Whole numbers, one after the other. What is left out at the end is as at first.
class Reader {
 public:
  explicit Reader(std::span<const std::int64_t> numbers) : rest_(numbers) {}

  std::int64_t next(std::int64_t at_first) { return rest_.empty() ? at_first : take(1)[0]; }

  std::span<const std::int64_t> take(std::int64_t count) {
    if (count < 0 || static_cast<std::uint64_t>(count) > rest_.size())
      refuse("numbers: {} are left, but {} are wanted; rootdk packs them itself", rest_.size(), count);
    const auto taken = rest_.first(static_cast<std::size_t>(count));
    rest_ = rest_.subspan(static_cast<std::size_t>(count));
    return taken;
  }

  /// How many, and those.
  std::optional<std::span<const std::int64_t>> listed() {
    const std::int64_t count = next(kAbsent);
    if (count == kAbsent) return {};
    return take(count);
  }

  std::int64_t left() const { return static_cast<std::int64_t>(rest_.size()); }

 private:
  std::span<const std::int64_t> rest_;
};

Diagonal diagonal_of(std::int64_t kind, std::int64_t offset) {
  switch (kind) {
    case 0: return Diagonal::bottom_right();
    case 1: return Diagonal::top_left();
    case 2: return Diagonal::last_key();
    case 3: return Diagonal::at(offset);
    default: refuse("diagonal: kind {}, but 0 to 3 is wanted", kind);
  }
}

void read_mask(Reader& reader, Mask& mask) {
  mask.causal = reader.next(0) != 0;
  const std::int64_t kind = reader.next(0), offset = reader.next(0);
  mask.diagonal = diagonal_of(kind, offset);
  const bool bounded = reader.next(0) != 0;
  const auto side = [](std::int64_t distance) { return distance == kUnbounded ? Window::kUnbounded : distance; };
  const std::int64_t left = side(reader.next(kUnbounded)), right = side(reader.next(kUnbounded));
  if (bounded) mask.window = Window{left, right};
  const std::int64_t items = reader.next(0);
  const auto q_starts = reader.listed(), kv_starts = reader.listed();
  if (q_starts && kv_starts) mask.documents = Documents{*q_starts, *kv_starts, items};
  for (const base::PerItem& field : base::kPerItem) mask.*field.numbers = reader.listed().value_or(field.of(mask));
}

std::string text_of(std::span<const std::int64_t> characters) {
  std::string text;
  for (const std::int64_t c : characters) text += c > 0 && c < 128 ? static_cast<char>(c) : '?';
  return text;
}

}  // namespace

void read_description(std::span<const std::int64_t> numbers, std::span<const double> reals, Problem& problem,
                      std::vector<float>& slopes) {
  if (!numbers.empty()) {
    Reader reader(numbers);
    problem.dropout.seed = static_cast<std::uint64_t>(reader.next(0));
    read_mask(reader, problem.mask);
    if (reader.left() > 0) problem.scale = Scale::parse(text_of(reader.take(reader.left())));
  }
  if (reals.empty()) return;
  constexpr std::size_t kFixed = 5;
  if (reals.size() < kFixed)
    refuse("reals: {}, but at least {} are wanted; rootdk packs them itself", reals.size(), kFixed);
  if (reals[0] != 0) problem.scale = Scale::constant(reals[1]);
  if (reals[2] != 0) problem.soft_cap = static_cast<float>(reals[3]);
  problem.dropout.p = static_cast<float>(reals[4]);
  slopes.clear();
  std::transform(reals.begin() + kFixed, reals.end(), std::back_inserter(slopes),
                 [](double slope) { return static_cast<float>(slope); });
  problem.mask.alibi_slopes = slopes;
}

}  // namespace rootdk::python
