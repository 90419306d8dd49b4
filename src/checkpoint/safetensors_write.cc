// Writes safetensors: a header of JSON padded to 8 bytes, then tensors from the widest elements to the narrowest.
#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <tuple>

#include "base/memory_errors.h"
#include "base/refuse.h"
#include "checkpoint/atomic_file.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/shape.h"
#include "checkpoint/text.h"
#include "rootdk/checkpoint/safetensors.h"

namespace rootdk::checkpoint {

using base::refuse;

namespace {

void check(const NewTensor& tensor) {
  if (!is_name(tensor.name) || tensor.name == kMetadataKey)
    refuse("name: {}, but a tensor's name is UTF-8 without control characters, and not empty or {}",
           in_quotes(tensor.name), kMetadataKey);
  if (!in_safetensors(tensor.encoding))
    refuse("tensor {}: safetensors have no {}", in_quotes(tensor.name), traits(tensor.encoding).name);
  if (tensor.shape.size() > kMaxAxes)
    refuse("tensor {}: {} axes, but at most {} are taken", in_quotes(tensor.name), tensor.shape.size(), kMaxAxes);
  const auto count = count_of(tensor.shape);
  const auto bytes = count ? bytes_of(tensor.encoding, *count) : std::nullopt;
  if (!bytes)
    refuse("tensor {}: no tensor of {} can have the shape {}", in_quotes(tensor.name), traits(tensor.encoding).name,
           show(tensor.shape));
  if (*bytes != tensor.data.size())
    refuse("tensor {}: {} bytes, but {} of shape {} has {}", in_quotes(tensor.name), tensor.data.size(),
           traits(tensor.encoding).name, show(tensor.shape), *bytes);
}

// What its numbers can be aligned to; those that share bytes have no alignment.
int alignment_of(const NewTensor& tensor) {
  const EncodingTraits& t = traits(tensor.encoding);
  return t.block_values == 1 ? t.block_bytes : 1;
}

// Largest elements first: as the data begin at a multiple of 8, each tensor is then aligned.
std::vector<const NewTensor*> in_order(std::span<const NewTensor> tensors) {
  std::vector<const NewTensor*> order;
  std::set<std::string_view> names;
  for (const NewTensor& tensor : tensors) {
    check(tensor);
    if (!names.insert(tensor.name).second) refuse("tensors: two have the name {}", in_quotes(tensor.name));
    order.push_back(&tensor);
  }
  std::sort(order.begin(), order.end(), [](const NewTensor* a, const NewTensor* b) {
    return std::tuple(-alignment_of(*a), std::string_view(a->name)) <
           std::tuple(-alignment_of(*b), std::string_view(b->name));
  });
  return order;
}

std::string header_of(const std::vector<const NewTensor*>& tensors,
                      const std::map<std::string, std::string>& metadata) {
  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  for (const auto& [key, value] : metadata)
    for (const std::string* text : {&key, &value})
      if (first_not_utf8(*text) != std::string::npos) refuse("metadata: {} is not UTF-8", in_quotes(*text));
  if (!metadata.empty()) header[std::string(kMetadataKey)] = metadata;
  std::uint64_t offset = 0;
  std::string text = header.dump();
  text.pop_back();
  // One tensor at a time: an ordered object looks through all its keys for each new one.
  for (const NewTensor* tensor : tensors) {
    const nlohmann::ordered_json entry = {{"dtype", traits(tensor->encoding).name},
                                          {"shape", tensor->shape},
                                          {"data_offsets", {offset, offset + tensor->data.size()}}};
    if (text.size() > 1) text += ',';
    text += nlohmann::json(tensor->name).dump() + ':' + entry.dump();
    offset += tensor->data.size();
  }
  text += '}';
  text.append((8 - text.size() % 8) % 8, ' ');
  if (text.size() > kMaxHeaderBytes)
    refuse("tensors: a header of {} bytes, but at most {} is taken", text.size(), kMaxHeaderBytes);
  return text;
}

}  // namespace

void write_safetensors(const std::filesystem::path& path, std::span<const NewTensor> tensors,
                       const std::map<std::string, std::string>& metadata) {
  base::with_memory_errors([&] {
    const std::vector<const NewTensor*> order = in_order(tensors);
    const std::string header = header_of(order, metadata);
    const auto length = static_cast<std::uint64_t>(header.size());
    AtomicFile file(path);
    file.append(std::as_bytes(std::span(&length, 1)));
    file.append(header);
    for (const NewTensor* tensor : order) file.append(tensor->data);
    file.commit();
  });
}

}  // namespace rootdk::checkpoint
