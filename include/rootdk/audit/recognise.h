// From the names of tensors and a configuration to a Model. Families are data: a table that is built in, in the
// language that a user's own file speaks (docs/audit.md).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "rootdk/audit/model.h"
#include "rootdk/checkpoint/checkpoint.h"
#include "rootdk/export.h"

namespace rootdk::audit {

/// What is known from elsewhere; it wins over the checkpoint's own configuration.
struct Hints {
  std::optional<std::int64_t> heads = {}, kv_heads = {}, head_dim = {};
  std::optional<theory::Norm::Kind> norm = {};
  std::optional<double> scale = {};        ///< what multiplies q·k …
  std::string scale_rule = {};             ///< … or a rule for it, as Scale::parse reads it; empty: none
  std::optional<double> rotary_base = {};  ///< 0: no rotary positions
  std::optional<std::int64_t> context = {};
  std::string family = {};       ///< the name of a family; empty: found out
  std::string family_json = {};  ///< the text of a family file; these families are tried before the built-in ones
};

/// Refuses what it does not know, saying what in it looks like attention and what would help; refuses tensors that are
/// missing or have other shapes than the configuration asks for, by name.
ROOTDK_API Model recognise(const checkpoint::Checkpoint& checkpoint, const Hints& hints = {});

/// Names of the built-in families.
ROOTDK_API std::vector<std::string> families();

/// The built-in table, as JSON: a start for one's own.
ROOTDK_API std::string families_json();

}  // namespace rootdk::audit
