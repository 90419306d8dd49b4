// What a model is trained on: a source of batches.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "rootdk/export.h"

namespace rootdk::lab {

/// Sequences of one length side by side.
struct Batch {
  std::int64_t sequences = 0, length = 0;
  std::vector<std::int32_t> tokens;   ///< [sequences, length]
  std::vector<std::int32_t> targets;  ///< [sequences, length]: the right answer at each place, or nn::kNoTarget
};

/// What success is measured by.
enum class Measure : std::uint8_t {
  kAccuracy,  ///< share of answers that are right; more is better
  kLoss,      ///< nats per answer; less is better
};

/// Batches are a pure function of what is asked for, the same on every machine: nothing to store, nothing to rewind,
/// and two runs of one seed see the same batches whatever else differs between them.
class ROOTDK_API Task {
 public:
  enum class Split : std::uint8_t {
    kTrain,
    kHeldOut,  ///< never trained on
  };

  virtual ~Task();

  /// Everything that decides what its batches are, in one line: a checkpoint of another task is refused by it.
  virtual std::string description() const = 0;
  virtual std::int64_t vocabulary() const = 0;
  virtual std::int64_t length() const = 0;  ///< of its sequences
  virtual Measure measure() const = 0;

  /// Batch number `index` of this seed, in place of what `batch` holds.
  virtual void draw(Split split, std::uint64_t seed, std::uint64_t index, std::int64_t sequences,
                    Batch& batch) const = 0;
};

}  // namespace rootdk::lab
