// Which files make up a checkpoint, and opening them without being led elsewhere.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "checkpoint/source.h"
#include "rootdk/checkpoint/checkpoint.h"

namespace rootdk::checkpoint {

/// Either an index or files, by their names in the directory.
struct Choice {
  std::optional<std::string> index;
  std::vector<std::string> files;
};

/// As Checkpoint::open says. Of a directory and the names of what is `elsewhere`, if there is any: then the directory
/// need not be here.
Choice choose_files(const std::filesystem::path& directory, std::set<std::string> elsewhere);

/// A file of this directory. A symbolic link may lead out of it only if the options say so, or into the blobs of a
/// Hugging Face cache, where …/snapshots/REVISION/NAME leads to …/blobs/HASH.
std::shared_ptr<const Source> open_in(const std::filesystem::path& directory, const std::string& name,
                                      const OpenOptions& options);

}  // namespace rootdk::checkpoint
