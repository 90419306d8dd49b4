// Two-dimensional tensors whose names sound like queries or keys, one line for all layers together.
#include "audit/suspects.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <map>
#include <string_view>
#include <vector>

#include "audit/json.h"

namespace rootdk::audit {

namespace {

constexpr std::size_t kShown = 6;

// "layers.12.attn.q" → "layers.{layer}.attn.q": tensors that differ only by number are one.
std::string without_numbers(std::string_view name) {
  std::string out;
  for (std::size_t i = 0; i < name.size();) {
    std::size_t end = name.find('.', i);
    if (end == name.npos) end = name.size();
    const std::string_view word = name.substr(i, end - i);
    const bool number =
        !word.empty() && std::all_of(word.begin(), word.end(), [](unsigned char c) { return std::isdigit(c) != 0; });
    out += number && out.find("{layer}") == out.npos ? "{layer}" : std::string(word);
    if (end < name.size()) out += '.';
    i = end + 1;
  }
  return out;
}

// Parts of names that those who write models use for queries and keys.
bool looks_like_attention(std::string_view name) {
  std::string lower(name);
  std::transform(lower.begin(), lower.end(), lower.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  for (const char* word : {"q_proj", "k_proj", "qkv", "query", "key", "attn_q", "attn_k", "c_attn", "wq", "wk", "to_q",
                           "to_k", "in_proj", "q_lin", "k_lin", "attention.q", "attention.k", "attn.q", "attn.k"})
    if (lower.find(word) != lower.npos) return true;
  return false;
}

}  // namespace

std::string suspects_in(const checkpoint::Checkpoint& checkpoint) {
  std::map<std::string, const checkpoint::TensorInfo*> found;
  for (const checkpoint::TensorInfo& tensor : checkpoint.tensors())
    if (tensor.shape.size() == 2 && looks_like_attention(tensor.name))
      found.emplace(without_numbers(tensor.name), &tensor);
  if (found.empty()) return fmt::format("; none of its {} tensors looks like attention", checkpoint.tensors().size());
  std::vector<std::string> shown;
  for (const auto& [name, tensor] : found) {
    if (shown.size() == kShown) break;
    shown.push_back(fmt::format("{} [{}]", in_quotes(name), fmt::join(tensor->shape, ", ")));
  }
  if (found.size() > kShown) shown.push_back(fmt::format("{} more", found.size() - kShown));
  return fmt::format("; what looks like attention in it: {}; a family file (--family-file, family_file=) tells which "
                     "of these are q and k; heads, kv_heads and norm what no config.json says",
                     fmt::join(shown, ", "));
}

}  // namespace rootdk::audit
