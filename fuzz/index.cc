// Any bytes as model.safetensors.index.json; no name of a shard may lead out of its directory.
#include "checkpoint/index.h"
#include "target.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  return rootdk::fuzz::refused_or_done([&] {
    const auto source = rootdk::checkpoint::Source::memory("fuzzed", std::as_bytes(std::span(data, size)));
    for (const auto& entry : rootdk::checkpoint::read_index(*source))
      if (entry.file.find('/') != std::string::npos || entry.file.find('\0') != std::string::npos) std::abort();
  });
}
