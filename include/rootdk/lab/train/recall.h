// Associative recall: pairs of a key and a value, then keys again; the answer at each is its value.
//
//   tokens    c 4  a 7  d 1  b 7  |  d  b  a  c
//   answers                       |  1  7  7  4
//
// Pairs are new in every sequence, so nothing can be learned by heart: to answer, a model has to look back to where the
// key stood and read what came after it. That takes attention, and attention that finds one place among many.
#pragma once

#include <cstdint>
#include <string>

#include "rootdk/export.h"
#include "rootdk/lab/train/task.h"

namespace rootdk::lab {

struct RecallOptions {
  std::int64_t pairs = 8;    ///< in a sequence; their keys differ
  std::int64_t asked = 8;    ///< of these keys, each once
  std::int64_t keys = 16;    ///< there are
  std::int64_t values = 16;  ///< there are; guessing one of a sequence's own is right once in about `pairs` times
};

class ROOTDK_API RecallTask final : public Task {
 public:
  explicit RecallTask(const RecallOptions& options = {});

  const RecallOptions& options() const { return options_; }

  std::string description() const override;
  std::int64_t vocabulary() const override { return options_.keys + options_.values; }
  std::int64_t length() const override { return 2 * options_.pairs + options_.asked; }
  Measure measure() const override { return Measure::kAccuracy; }
  void draw(Split split, std::uint64_t seed, std::uint64_t index, std::int64_t sequences, Batch& batch) const override;

 private:
  RecallOptions options_;
};

}  // namespace rootdk::lab
