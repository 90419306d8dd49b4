// An audit in parts: each finds what there is to say of some layers, wherever these can be read, and all of them joined
// are what one audit of everything finds, to the bit.
//
//   const auto part = audit::audit_layers(file, model, mine, options);     on every machine, of layers of its own
//   const auto bytes = audit::packed(part, mine);                          these travel
//   const audit::Audit found = audit::joined(model, options, all);         on whoever has all of them
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "rootdk/audit/findings.h"
#include "rootdk/audit/model.h"
#include "rootdk/checkpoint/checkpoint.h"
#include "rootdk/export.h"

namespace rootdk::audit {

/// Bytes of one of Checkpoint::files().
struct Extent {
  std::size_t file = 0;
  std::uint64_t offset = 0, bytes = 0;
};

/// What the audit of these layers (indices of Model::layers) reads of them, beside headers: by file and offset, nothing
/// twice, neighbours in one.
ROOTDK_API std::vector<Extent> reads_of(const checkpoint::Checkpoint& checkpoint, const Model& model,
                                        std::span<const std::size_t> layers);
/// And what every audit reads, whatever its layers: a sample of the embeddings.
ROOTDK_API std::vector<Extent> reads_of_embeddings(const checkpoint::Checkpoint& checkpoint, const Model& model);

/// As audit(), of these layers only, in this order. Refuses a run, which needs all of them.
ROOTDK_API Audit audit_layers(const checkpoint::Checkpoint& checkpoint, const Model& model,
                              std::span<const std::size_t> layers, const Options& options = {});

/// What was found of these layers, for joined() of the same version of the library on a machine of the same byte order.
ROOTDK_API std::vector<std::byte> packed(const Audit& part, std::span<const std::size_t> layers);

/// What audit() of the model with these options finds. Refuses what packed() did not write, layers that are in no part,
/// and layers that are in two.
ROOTDK_API Audit joined(const Model& model, const Options& options, std::span<const std::span<const std::byte>> parts);

}  // namespace rootdk::audit
