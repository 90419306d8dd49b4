// Any bytes as a safetensors file.
#include "target.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  return rootdk::fuzz::open(data, size, rootdk::checkpoint::Format::kSafetensors);
}
