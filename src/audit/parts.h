// Places in files, as several readers of a checkpoint name them.
#pragma once

#include <string>
#include <vector>

#include "rootdk/audit/parts.h"

namespace rootdk::audit {

/// Sorted by file and offset; what overlaps or touches becomes one.
std::vector<Extent> united(std::vector<Extent> extents);

/// All of a tensor; nothing for an empty name.
void add_tensor(const checkpoint::Checkpoint& checkpoint, const std::string& tensor, std::vector<Extent>& into);

/// The numbers of keys that findings are for, and that verdicts are for.
void set_contexts(const Model& model, const Options& options, Audit& audit);

}  // namespace rootdk::audit
