// A lab::Checkpoint to and from write_safetensors and Checkpoint::open.
#include "rootdk/lab/train/safetensors_store.h"

#include <filesystem>
#include <span>
#include <system_error>

#include "rootdk/checkpoint/checkpoint.h"
#include "rootdk/checkpoint/safetensors.h"

namespace rootdk::lab {

void SafetensorsStore::save(const std::string& path, const Checkpoint& checkpoint) {
  std::vector<checkpoint::NewTensor> tensors;
  for (const CheckpointTensor& t : checkpoint.tensors)
    tensors.push_back(checkpoint::new_tensor(t.name, t.shape, std::span<const float>(t.values)));
  checkpoint::write_safetensors(path, tensors, checkpoint.metadata);
}

std::optional<Checkpoint> SafetensorsStore::load(const std::string& path) {
  std::error_code error;  // anything but absence is left for open to refuse
  if (!std::filesystem::exists(path, error) && !error) return {};
  const checkpoint::Checkpoint file = checkpoint::Checkpoint::open(path);
  Checkpoint out;
  for (const checkpoint::TensorInfo& t : file.tensors())
    out.tensors.push_back({t.name, t.shape, file.read_f32(t.name)});
  for (const checkpoint::MetadataEntry& entry : file.metadata())
    if (const std::string* text = entry.value.text()) out.metadata[entry.key] = *text;
  return out;
}

}  // namespace rootdk::lab
