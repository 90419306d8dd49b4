// What to do about a checkpoint that cannot be read as it is.
#pragma once

#include <filesystem>
#include <string>

namespace rootdk::checkpoint {

/// Whether a file of this name is one that torch.save makes: a pickle, which can run code when it is read, and is never
/// opened here.
bool is_pickle_name(const std::filesystem::path& name);

/// How to make safetensors of it, on one line.
std::string how_to_convert(const std::filesystem::path& pickle);

/// For a path that is not there but looks like the name of a model on the Hub ("org/name"): how to get that. Else
/// empty.
std::string how_to_download(const std::filesystem::path& path);

}  // namespace rootdk::checkpoint
