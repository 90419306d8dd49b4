// The tiny models of models.h as GGUF files.
#pragma once

#include "audit/models.h"
#include "support/files.h"
#include "support/gguf_writer.h"

namespace rootdk::audit {

/// The config being metadata: whole numbers as u32, others as f32.
inline void write_gguf(const Made& made, const std::string& architecture, const std::filesystem::path& path) {
  test::GgufWriter writer;
  writer.text("general.architecture", architecture);
  for (const auto& [key, value] : made.config.items()) {
    if (value.is_number_integer()) writer.number(architecture + "." + key, test::kU32, value.get<std::uint32_t>());
    else if (value.is_number()) writer.number(architecture + "." + key, test::kF32, value.get<float>());
    else writer.text(architecture + "." + key, value.get<std::string>());
  }
  for (const auto& [name, m] : made.tensors) {
    const std::vector<float> values(m.values.begin(), m.values.end());
    std::vector<std::uint64_t> extents = {static_cast<std::uint64_t>(m.width)};
    if (m.rows > 0) extents.push_back(static_cast<std::uint64_t>(m.rows));
    writer.tensor({name, extents, test::kGgmlF32, test::bytes_of(std::span<const float>(values))});
  }
  test::write_file(path, writer.bytes());
}

}  // namespace rootdk::audit
