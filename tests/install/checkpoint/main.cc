// A program of somebody else's over rootdk::checkpoint: writes a file, reads it, catches its refusal.
#include <rootdk/checkpoint/checkpoint.h>
#include <rootdk/checkpoint/safetensors.h>
#include <rootdk/error.h>

#include <filesystem>
#include <string>
#include <vector>

int main() {
  namespace checkpoint = rootdk::checkpoint;
  const std::filesystem::path path = std::filesystem::temp_directory_path() / "rootdk_install_test.safetensors";
  const std::vector<float> values = {1, 2, 3, 4};
  const std::vector<checkpoint::NewTensor> tensors = {checkpoint::new_tensor<float>("w", {2, 2}, values)};
  checkpoint::write_safetensors(path, tensors);
  const bool same = checkpoint::Checkpoint::open(path).read_f32("w") == values;
  std::filesystem::remove(path);
  try {
    checkpoint::Checkpoint::open(path);
  } catch (const rootdk::Error&) {  // across the library's edge
    return same ? 0 : 1;
  }
  return 1;
}
