// Text, character by character: at every place the answer is the character after it. A character is a byte, and the
// vocabulary is those bytes that the text has.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "rootdk/export.h"
#include "rootdk/lab/train/task.h"

namespace rootdk::lab {

struct TextOptions {
  std::int64_t length = 128;    ///< of a sequence
  double held_out_share = 0.1;  ///< of the text, at its end: never trained on
};

class ROOTDK_API TextTask final : public Task {
 public:
  explicit TextTask(std::string_view text, const TextOptions& options = {});

  const TextOptions& options() const { return options_; }

  std::string description() const override;
  std::int64_t vocabulary() const override { return static_cast<std::int64_t>(characters_.size()); }
  std::int64_t length() const override { return options_.length; }
  Measure measure() const override { return Measure::kLoss; }
  /// Windows that begin anywhere in their part of the text.
  void draw(Split split, std::uint64_t seed, std::uint64_t index, std::int64_t sequences, Batch& batch) const override;

  /// Tokens back to text, for people.
  std::string text_of(const std::vector<std::int32_t>& tokens) const;

 private:
  TextOptions options_;
  std::string characters_;            ///< character of each token, ascending
  std::vector<std::int32_t> tokens_;  ///< of the whole text
  std::size_t train_ = 0;             ///< so many of them are for training
  std::uint64_t fingerprint_ = 0;
};

/// The whole file. Throws if it cannot be read.
ROOTDK_API std::string read_text(const std::string& path);

}  // namespace rootdk::lab
