// What the command is talking to: how wide it is, if it is a terminal.
#pragma once

#include <cstddef>
#include <optional>

#include "report/text.h"

namespace rootdk::app {

/// Columns of the terminal that a descriptor is, as it is now; absent if it is none, or does not say.
std::optional<std::size_t> columns_of(int descriptor);

/// For standard output: COLUMNS if that is set, else the terminal's own; for files and pipes what does not depend on a
/// terminal.
report::Layout output_layout(report::Detail detail = report::Detail::kAll);

}  // namespace rootdk::app
