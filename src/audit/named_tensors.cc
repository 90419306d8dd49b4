// "{layer}" filled in, then each tensor looked up and held against the shape that settings promise.
#include "audit/named_tensors.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <string_view>
#include <utility>

#include "audit/json.h"
#include "base/refuse.h"

namespace rootdk::audit {

using base::refuse;
using checkpoint::Checkpoint;
using checkpoint::TensorInfo;

std::string filled(std::string pattern, std::int64_t layer) {
  for (const auto& [mark, number] :
       {std::pair<std::string_view, std::int64_t>{"{layer}", layer}, {"{previous}", layer - 1}})
    for (std::size_t at; (at = pattern.find(mark)) != pattern.npos;)
      pattern.replace(at, mark.size(), std::to_string(number));
  return pattern;
}

const TensorInfo* weight_in(const Checkpoint& file, const std::string& name) {
  for (const char* ending : {".weight", "", ".gamma"})
    if (const TensorInfo* found = file.find(name + ending)) return found;
  return nullptr;
}

const TensorInfo& NamedTensors::matrix(const std::string& name) const {
  const TensorInfo* found = weight_in(file_, name);
  if (found == nullptr)
    refuse("{}: the checkpoint has no such tensor, which a {} model has", in_quotes(name + ".weight"), family_name_);
  if (found->shape.size() != 2 || found->shape[0] < 1 || found->shape[1] < 1)
    refuse("{}: its shape is [{}], but [out, in] is wanted", in_quotes(found->name), fmt::join(found->shape, ", "));
  if (!checkpoint::traits(found->encoding).readable)
    refuse("{}: {} numbers, which cannot be read", in_quotes(found->name), checkpoint::traits(found->encoding).name);
  return *found;
}

void NamedTensors::check_vector(const std::string& tensor, std::int64_t wanted) const {
  const TensorInfo& found = file_.at(tensor);
  if (found.rows() * found.width() != wanted || found.rows() != 1)
    refuse("{}: its shape is [{}], but [{}] is wanted", in_quotes(tensor), fmt::join(found.shape, ", "), wanted);
  if (!checkpoint::traits(found.encoding).readable)
    refuse("{}: {} numbers, which cannot be read", in_quotes(tensor), checkpoint::traits(found.encoding).name);
}

std::string NamedTensors::bias_of(const std::string& name, std::int64_t rows) const {
  for (const char* ending : {".bias", ".beta"}) {
    if (file_.find(name + ending) == nullptr) continue;
    check_vector(name + ending, rows);
    return name + ending;
  }
  return {};
}

NormPlace NamedTensors::norm_at(const std::string& name, theory::Norm::Kind kind, double offset,
                                std::int64_t width) const {
  NormPlace norm;
  norm.kind = kind;
  if (kind == theory::Norm::Kind::kNone) return norm;
  const TensorInfo* gain = weight_in(file_, name);
  if (gain == nullptr)
    refuse("{}: the checkpoint has no such tensor, which a {} model has; norm = none leaves it out",
           in_quotes(name + ".weight"), family_name_);
  norm.gain = gain->name;
  norm.gain_offset = offset;
  check_vector(norm.gain, width);
  norm.bias = bias_of(name, width);
  return norm;
}

}  // namespace rootdk::audit
