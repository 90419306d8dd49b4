// Bytes numbered in ascending order; windows from random places, the text's end being held out.
#include "rootdk/lab/train/text.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <system_error>

#include "lab/need.h"
#include "lab/train/check.h"
#include "lab/train/random.h"

namespace rootdk::lab {

namespace {

constexpr std::size_t kPiece = 1 << 20, kMostCharacters = (std::size_t{1} << 31) - 1;

}  // namespace

TextTask::TextTask(std::string_view text, const TextOptions& options) : options_(options) {
  check_between("length", options.length, 1, 1 << 20);
  if (!(options.held_out_share > 0 && options.held_out_share < 1))
    base::refuse("held_out_share: {}, but more than 0 and less than 1 is wanted", options.held_out_share);
  const auto window = static_cast<std::size_t>(options.length) + 1;  // the last place has an answer, too
  const auto held_out = static_cast<std::size_t>(options.held_out_share * static_cast<double>(text.size()));
  if (held_out < window || text.size() - held_out < window)
    base::refuse("text: {} characters, but training on {} at a time and holding a share of {} back takes more",
                 text.size(), options.length, options.held_out_share);
  if (text.size() > kMostCharacters)
    base::refuse("text: {} characters, but at most {} are wanted", text.size(), kMostCharacters);

  std::array<std::int32_t, 256> token_of;
  token_of.fill(-1);
  for (const char c : text) token_of[static_cast<unsigned char>(c)] = 0;
  for (std::size_t c = 0; c < token_of.size(); ++c) {
    if (token_of[c] < 0) continue;
    token_of[c] = static_cast<std::int32_t>(characters_.size());
    characters_.push_back(static_cast<char>(c));
  }
  tokens_.reserve(text.size());
  fingerprint_ = 0xCBF29CE484222325;  // FNV-1a: to tell texts apart, not to keep secrets
  for (const char c : text) {
    tokens_.push_back(token_of[static_cast<unsigned char>(c)]);
    fingerprint_ = (fingerprint_ ^ static_cast<unsigned char>(c)) * 0x100000001B3;
  }
  train_ = text.size() - held_out;
}

std::string TextTask::description() const {
  return fmt::format("text: {} characters ({:016x}), {} at a time, the last {} held out", tokens_.size(), fingerprint_,
                     options_.length, tokens_.size() - train_);
}

void TextTask::draw(Split split, std::uint64_t seed, std::uint64_t index, std::int64_t sequences, Batch& batch) const {
  batch.sequences = sequences;
  batch.length = options_.length;
  batch.tokens.clear();
  batch.targets.clear();
  Random random(seed, Purpose::kText, static_cast<std::uint32_t>(split), index);
  const std::size_t begin = split == Split::kTrain ? 0 : train_, end = split == Split::kTrain ? train_ : tokens_.size();
  const auto starts = static_cast<std::uint32_t>(end - begin) - static_cast<std::uint32_t>(options_.length);
  for (std::int64_t s = 0; s < sequences; ++s) {
    const auto from = tokens_.begin() + static_cast<std::ptrdiff_t>(begin + random.below(starts));
    batch.tokens.insert(batch.tokens.end(), from, from + options_.length);
    batch.targets.insert(batch.targets.end(), from + 1, from + options_.length + 1);
  }
}

std::string TextTask::text_of(const std::vector<std::int32_t>& tokens) const {
  std::string text;
  for (const std::int32_t token : tokens) {
    check_between("token", token, 0, vocabulary() - 1);
    text.push_back(characters_[static_cast<std::size_t>(token)]);
  }
  return text;
}

std::string read_text(const std::string& path) {
  std::error_code error;
  if (std::filesystem::is_directory(path, error)) base::refuse("text: {} is a folder, but a file is wanted", path);
  std::ifstream file(path, std::ios::binary);
  if (!file) base::refuse("text: cannot open {}", path);
  // A pipe or a device does not say how much there is: room is made as the text grows.
  const std::uintmax_t size =
      std::filesystem::is_regular_file(path, error) ? std::filesystem::file_size(path, error) : 0;
  if (!error && size > kMostCharacters)
    base::refuse("text: {} bytes in {}, but at most {} are wanted", size, path, kMostCharacters);
  std::string text;
  for (std::size_t room = error ? kPiece : std::max<std::size_t>(kPiece, size + 1); file; room *= 2) {
    want_memory(
        {base::saturated(real(room) * (1 + sizeof(std::int32_t))), 1, "text", fmt::format("{} characters", room - 1)});
    const std::size_t had = text.size();
    text.resize(room);
    file.read(text.data() + had, static_cast<std::streamsize>(room - had));
    text.resize(had + static_cast<std::size_t>(file.gcount()));
    if (text.size() > kMostCharacters) base::refuse("text: more than {} bytes in {}", kMostCharacters, path);
  }
  if (file.bad()) base::refuse("text: cannot read {}", path);
  return text;
}

}  // namespace rootdk::lab
