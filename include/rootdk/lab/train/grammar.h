// A text that is made up by rules, for want of one to train on: small stories in which people get things and later keep
// them.
//
//   Anna has a green key. Ben has a red cup. The bird that the cats watch sings. So Ben keeps the red cup. …
//
// Spelling can be learned by heart; that verbs agree with nouns a clause away, and who keeps what, only by looking
// back.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "rootdk/export.h"

namespace rootdk::lab {

/// At least so many characters, whole stories. The same text for the same seed on every machine.
ROOTDK_API std::string grammar_text(std::size_t characters, std::uint64_t seed = 1);

}  // namespace rootdk::lab
