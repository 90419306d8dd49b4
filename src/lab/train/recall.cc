// Pairs drawn without repeating a key, from a generator that split, seed and index determine.
#include "rootdk/lab/train/recall.h"

#include <fmt/format.h>

#include <cstddef>
#include <numeric>

#include "lab/train/check.h"
#include "lab/train/random.h"
#include "rootdk/nn/cross_entropy.h"

namespace rootdk::lab {

RecallTask::RecallTask(const RecallOptions& options) : options_(options) {
  check_between("keys", options.keys, 1, 1 << 20);
  check_between("values", options.values, 2, 1 << 20);
  check_between("pairs", options.pairs, 1, options.keys);
  check_between("asked", options.asked, 1, options.pairs);
}

std::string RecallTask::description() const {
  return fmt::format("recall: {} pairs, {} asked, {} keys, {} values", options_.pairs, options_.asked, options_.keys,
                     options_.values);
}

void RecallTask::draw(Split split, std::uint64_t seed, std::uint64_t index, std::int64_t sequences,
                      Batch& batch) const {
  batch.sequences = sequences;
  batch.length = length();
  batch.tokens.clear();
  batch.targets.clear();
  Random random(seed, Purpose::kRecall, static_cast<std::uint32_t>(split), index);
  const auto pairs = static_cast<std::size_t>(options_.pairs), asked = static_cast<std::size_t>(options_.asked);
  std::vector<std::int32_t> keys(static_cast<std::size_t>(options_.keys)), values(pairs);
  std::vector<std::size_t> order(pairs);
  for (std::int64_t s = 0; s < sequences; ++s) {
    std::iota(keys.begin(), keys.end(), 0);
    std::iota(order.begin(), order.end(), std::size_t{0});
    random.shuffle(keys, pairs);
    for (std::int32_t& value : values)
      value = static_cast<std::int32_t>(options_.keys + random.below(static_cast<std::uint32_t>(options_.values)));
    random.shuffle(order, asked);
    for (std::size_t p = 0; p < pairs; ++p) {
      batch.tokens.insert(batch.tokens.end(), {keys[p], values[p]});
      batch.targets.insert(batch.targets.end(), {nn::kNoTarget, nn::kNoTarget});
    }
    for (std::size_t a = 0; a < asked; ++a) {
      batch.tokens.push_back(keys[order[a]]);
      batch.targets.push_back(values[order[a]]);
    }
  }
}

}  // namespace rootdk::lab
