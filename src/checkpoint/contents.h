// What one file holds, as its format's reader found it. Each reader checks everything and refuses the whole file
// otherwise.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "checkpoint/source.h"
#include "rootdk/checkpoint/metadata.h"
#include "rootdk/checkpoint/tensor_info.h"

namespace rootdk::checkpoint {

/// A deflated entry of an .npz: an .npy, header and all, behind TensorInfo::offset.
struct Deflated {
  std::uint64_t packed_bytes = 0;
  std::uint64_t header_bytes = 0;  ///< of the .npy's header, once unpacked
  std::uint32_t crc = 0;           ///< of all that is unpacked
};

struct StoredTensor {
  TensorInfo info;
  std::optional<Deflated> deflated = {};
};

struct Contents {
  std::vector<StoredTensor> tensors;  ///< by offset, then by name
  std::vector<MetadataEntry> metadata;
};

Contents read_safetensors(const Source& source);
Contents read_gguf(const std::shared_ptr<const Source>& source);  ///< shared with the arrays in the metadata
Contents read_npy(const Source& source);
Contents read_npz(const Source& source);

/// By offset, then by name; refuses two of one name.
void sort_tensors(const Source& source, std::vector<StoredTensor>& tensors);

}  // namespace rootdk::checkpoint
