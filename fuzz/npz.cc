// Any bytes as an .npz: the zip around it, what is deflated in it, and the arrays.
#include "target.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  return rootdk::fuzz::open(data, size, rootdk::checkpoint::Format::kNpz);
}
