// What in an unknown checkpoint looks like attention, and what would help to audit it: the end of a message.
#pragma once

#include <string>

#include "rootdk/checkpoint/checkpoint.h"

namespace rootdk::audit {

std::string suspects_in(const checkpoint::Checkpoint& checkpoint);

}  // namespace rootdk::audit
