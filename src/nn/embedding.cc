// Rows copied; in backward threads share out columns, as one token may come many times.
#include "rootdk/nn/embedding.h"

#include <algorithm>
#include <cstddef>

#include "nn/chunks.h"
#include "nn/sizes.h"

namespace rootdk::nn {

namespace {

template <class T>
void check_tokens(const BasicEmbedding<T>& embedding, std::span<const std::int32_t> tokens) {
  for (std::size_t i = 0; i < tokens.size(); ++i)
    if (tokens[i] < 0 || tokens[i] >= embedding.vocabulary)
      base::refuse("tokens[{}]: {}, but 0 to {} is wanted", i, tokens[i], embedding.vocabulary - 1);
}

template <class T>
void check_call(const BasicEmbedding<T>& embedding, std::span<const std::int32_t> tokens, const char* name,
                std::size_t size) {
  check_rows("embedding.weight", embedding.weight.size(), embedding.vocabulary, embedding.width);
  check_rows(name, size, static_cast<std::int64_t>(tokens.size()), embedding.width);
  check_tokens(embedding, tokens);
}

}  // namespace

template <class T>
BasicEmbedding<T>::BasicEmbedding(std::int64_t tokens, std::int64_t columns) : vocabulary(tokens), width(columns) {
  check_size("vocabulary", vocabulary);
  check_size("width", width);
  weight.assign(static_cast<std::size_t>(vocabulary * width), T(0));
}

template <class T>
void apply(const BasicEmbedding<T>& embedding, std::span<const std::int32_t> tokens, Values<T> x) {
  check_call(embedding, tokens, "x", x.size());
  const std::int64_t width = embedding.width;
  for (std::size_t i = 0; i < tokens.size(); ++i)
    std::copy_n(embedding.weight.data() + tokens[i] * width, width, x.data() + static_cast<std::int64_t>(i) * width);
}

template <class T>
void backward_parameters(std::span<const std::int32_t> tokens, Values<const T> d_x, BasicEmbedding<T>& gradients) {
  check_call(gradients, tokens, "d_x", d_x.size());
  const std::int64_t width = gradients.width;
  // Threads share out columns, not tokens: one token may come many times.
  for_each_chunk(width, [&](std::int64_t, std::int64_t first, std::int64_t last) {
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      T* const row = gradients.weight.data() + tokens[i] * width;
      const T* const d = d_x.data() + static_cast<std::int64_t>(i) * width;
      for (std::int64_t c = first; c < last; ++c) row[c] += d[c];
    }
  });
}

#define ROOTDK_INSTANTIATE(T)                                                              \
  template struct BasicEmbedding<T>;                                                       \
  template void apply(const BasicEmbedding<T>&, std::span<const std::int32_t>, Values<T>); \
  template void backward_parameters(std::span<const std::int32_t>, Values<const T>, BasicEmbedding<T>&);
ROOTDK_INSTANTIATE(float)
ROOTDK_INSTANTIATE(double)
#undef ROOTDK_INSTANTIATE

}  // namespace rootdk::nn
