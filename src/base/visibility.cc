// The keys of a mask that nobody sees.
#include "base/visibility.h"

#include <algorithm>
#include <limits>

#include "base/element.h"

namespace rootdk::base {

void mark_seen_keys(const Mask& mask, const Shape& shape, std::int64_t batch, std::int64_t kv_head,
                    std::uint8_t* seen) {
  std::fill_n(seen, shape.len_kv, std::uint8_t{0});
  const bool dense = mask.allowed.present() || mask.bias.present();
  const auto lets_see = [&](std::int64_t h, std::int64_t i, std::int64_t j) {
    return (!mask.allowed.present() || read(mask.allowed, batch, h, i, j) != 0) &&
           (!mask.bias.present() || read(mask.bias, batch, h, i, j) != -std::numeric_limits<double>::infinity());
  };
  std::int64_t unseen = shape.len_kv;
  const std::int64_t first = kv_head * shape.group(),
                     heads = dense ? shape.group() : 1;  // structural masks are the same for all
  for (std::int64_t h = first; h < first + heads; ++h) {
    KeyRange after = {};
    for (std::int64_t i = shape.len_q - 1; i >= 0 && unseen > 0; --i) {  // the last see most, where masks are causal
      const KeyRange range = visible_keys(mask, shape, batch, i);
      std::int64_t end = range.end;
      if (!dense && !after.empty() && range.end <= after.end)
        end = std::clamp(after.begin, range.begin, range.end);  // the rest is marked already
      for (std::int64_t j = range.begin; j < end; ++j)
        if (!seen[j] && (!dense || lets_see(h, i, j))) seen[j] = 1, --unseen;
      after = range;
    }
  }
}

}  // namespace rootdk::base
