// The typed values of GGUF's metadata.
#pragma once

#include <cstdint>
#include <memory>

#include "checkpoint/cursor.h"
#include "checkpoint/source.h"
#include "rootdk/checkpoint/metadata.h"

namespace rootdk::checkpoint {

/// Everything before the data must lie within the first GiB. Real files need some ten MB; a file with holes can claim
/// terabytes that would all have to be walked.
Cursor gguf_cursor(const Source& source, std::uint64_t position);

/// A value and the type before it. An array's elements are walked and checked, but not kept.
MetadataValue gguf_value(const std::shared_ptr<const Source>& source, Cursor& cursor);

}  // namespace rootdk::checkpoint
