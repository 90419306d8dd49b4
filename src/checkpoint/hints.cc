// The line that converts a pickle, safe to paste, and the one that downloads a model of the Hub.
#include "checkpoint/hints.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string_view>
#include <system_error>

#include "checkpoint/text.h"

namespace rootdk::checkpoint {

namespace fs = std::filesystem;

bool is_pickle_name(const fs::path& name) {
  constexpr std::array<std::string_view, 4> kEndings = {".bin", ".pt", ".pth", ".ckpt"};
  return std::find(kEndings.begin(), kEndings.end(), name.extension().string()) != kEndings.end();
}

// Whoever named the file does not get to say what a shell does with the line, if it is copied.
std::string how_to_convert(const fs::path& pickle) {
  const std::string name = printable(pickle.native());
  const bool plain = name.find_first_of("\"'$`\\!") == name.npos;
  return fmt::format("a pickle of PyTorch, which can run code and is never opened here; convert it: python -c "
                     "\"import torch, safetensors.torch as s; s.save_file({{k: v.contiguous().clone() for k, v in "
                     "torch.load('{}', weights_only=True).items()}}, 'model.safetensors')\"",
                     plain ? name : "FILE");
}

std::string how_to_download(const fs::path& path) {
  const std::string text = path.native();
  const std::size_t slash = text.find('/');
  const auto is_part = [](std::string_view part) {
    constexpr std::string_view kAllowed = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz._-";
    return !part.empty() && part.front() != '.' && part.front() != '-' && part.find_first_not_of(kAllowed) == part.npos;
  };
  if (slash == text.npos || !is_part(text.substr(0, slash)) || !is_part(text.substr(slash + 1))) return "";
  for (const std::string_view ending : {".safetensors", ".gguf", ".npz", ".npy", ".json"})
    if (text.ends_with(ending)) return "";
  std::error_code error;
  if (is_pickle_name(path) || fs::exists(text.substr(0, slash), error)) return "";
  return fmt::format("if it is a model of the Hugging Face Hub: nothing is downloaded here; "
                     "hf download {} --local-dir {} gets it",
                     text, text.substr(slash + 1));
}

}  // namespace rootdk::checkpoint
