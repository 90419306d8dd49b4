// A safetensors header whose length is right, so that all the work goes into the JSON: the first byte is how many bytes
// of data follow.
#include <cstring>

#include "target.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::uint64_t header = size - 1;
  std::vector<std::uint8_t> file(8 + header + data[0], 0x11);
  std::memcpy(file.data(), &header, 8);
  std::copy_n(data + 1, header, file.begin() + 8);
  return rootdk::fuzz::open(file.data(), file.size(), rootdk::checkpoint::Format::kSafetensors);
}
