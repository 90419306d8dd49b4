// The loss: −ln of the probability that softmax of the logits gives to the right answer, averaged over the rows that
// have one.
#pragma once

#include <cstdint>
#include <span>

#include "rootdk/export.h"
#include "rootdk/nn/parameters.h"

namespace rootdk::nn {

/// A row whose target is this has no answer: no loss, no gradient.
inline constexpr std::int32_t kNoTarget = -1;

struct CrossEntropy {
  double loss = 0;        ///< mean over the rows with a target, in nats; 0 if there is none
  double accuracy = 0;    ///< share of these whose largest logit (the first of equals) is the target's
  std::int64_t rows = 0;  ///< with a target
};

/// logits [rows, vocabulary], targets [rows]; d_logits, [rows, vocabulary] or empty, gets the gradient of the mean.
template <class T>
ROOTDK_API CrossEntropy cross_entropy(std::int64_t vocabulary, Values<const T> logits,
                                      std::span<const std::int32_t> targets, Values<T> d_logits);

}  // namespace rootdk::nn
