// A model in the shape of Llama 3 70B on disk, all of it holes: recognised whole, and audited in memory for a few
// heads.
#pragma once

#include <sys/stat.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>

#include "support/files.h"

namespace rootdk::audit {

inline constexpr std::int64_t kLayers = 80, kWidth = 8192, kKeys = 1024, kHeads = 64, kKeyHeads = 8, kDim = 128;

/// Header and holes, bf16: what an audit looks at, and the rest as one tensor a layer.
struct Sparse {
  std::string header;
  std::uint64_t bytes = 0;

  void add(const std::string& name, const std::string& shape, std::int64_t count) {
    const std::uint64_t end = bytes + static_cast<std::uint64_t>(2 * count);
    header += (header.empty() ? "{\"" : ",\"") + name + R"(":{"dtype":"BF16","shape":[)" + shape +
              R"(],"data_offsets":[)" + std::to_string(bytes) + "," + std::to_string(end) + "]}";
    bytes = end;
  }
  void matrix(const std::string& name, std::int64_t rows, std::int64_t columns) {
    add(name, std::to_string(rows) + "," + std::to_string(columns), rows * columns);
  }
};

/// Why it could not be made here; empty if it was.
inline std::string write_sparse(const std::filesystem::path& folder) {
  Sparse model;
  for (std::int64_t layer = 0; layer < kLayers; ++layer) {
    const std::string prefix = "model.layers." + std::to_string(layer) + ".";
    model.matrix(prefix + "self_attn.q_proj.weight", kWidth, kWidth);
    model.matrix(prefix + "self_attn.k_proj.weight", kKeys, kWidth);
    model.matrix(prefix + "mlp.weight", 3 * 28672 + kWidth + kKeys, kWidth);
    model.add(prefix + "input_layernorm.weight", std::to_string(kWidth), kWidth);
  }
  model.header += "}";
  const std::filesystem::path path = folder / "model.safetensors";
  test::write_file(path, test::Bytes().number(std::uint64_t{model.header.size()}).raw(model.header).text());
  test::write_file(folder / "config.json",
                   R"({"model_type": "llama", "num_hidden_layers": 80, "num_attention_heads": 64, )"
                   R"("num_key_value_heads": 8, "max_position_embeddings": 8192, "rope_theta": 500000})");
  std::error_code error;
  std::filesystem::resize_file(path, 8 + model.header.size() + model.bytes, error);
  if (error) return "no file of so many bytes with holes can be made here: " + error.message();
  struct stat status = {};
  if (stat(path.c_str(), &status) != 0 || status.st_blocks * 512 > (1 << 24)) return "this file system has no holes";
  return "";
}

/// Sanitizers keep what was freed for a while, and take long: memory is looked at without them.
inline constexpr bool kSanitized =
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    true;
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
    true;
#else
    false;
#endif
#else
    false;
#endif

/// The most memory this process ever had, in bytes; 0 where that cannot be read.
inline std::int64_t peak_memory() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);)
    if (line.starts_with("VmHWM:")) return std::stoll(line.substr(6)) * 1024;
  return 0;
}

}  // namespace rootdk::audit
