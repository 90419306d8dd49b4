// Tensors in the order of the file, after a look at their names: two alike are refused.
#include "checkpoint/contents.h"

#include <algorithm>

#include "checkpoint/text.h"

namespace rootdk::checkpoint {

void sort_tensors(const Source& source, std::vector<StoredTensor>& tensors) {
  const auto name = [](const StoredTensor& t) -> const std::string& { return t.info.name; };
  std::sort(tensors.begin(), tensors.end(), [&](const auto& a, const auto& b) { return name(a) < name(b); });
  for (std::size_t i = 1; i < tensors.size(); ++i)
    if (name(tensors[i - 1]) == name(tensors[i]))
      source.refuse_at(tensors[i].info.offset, "two tensors have the name {}", in_quotes(name(tensors[i])));
  std::stable_sort(tensors.begin(), tensors.end(),
                   [](const auto& a, const auto& b) { return a.info.offset < b.info.offset; });
}

}  // namespace rootdk::checkpoint
