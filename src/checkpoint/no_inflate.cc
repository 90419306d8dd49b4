// In place of inflate.cc where there is no zlib.
#include "checkpoint/byte_reader.h"
#include "checkpoint/text.h"

namespace rootdk::checkpoint {

bool can_inflate() { return false; }

std::unique_ptr<ByteReader> inflating_reader(const Source& source, const TensorInfo& info, const Deflated&) {
  source.refuse_at(info.offset, "{} is deflated, and this rootdk was built without zlib", in_quotes(info.name));
}

}  // namespace rootdk::checkpoint
