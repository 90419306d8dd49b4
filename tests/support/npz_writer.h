// Writes .npy and .npz files by hand: any header, any order; entries stored, or deflated into blocks that are not
// compressed.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "support/files.h"

namespace rootdk::test {

/// `dictionary` as it stands; version 1 has a length of two bytes, 2 and 3 of four.
inline std::string npy(std::string_view dictionary, std::string_view data = {}, int version = 1) {
  Bytes out;
  out.raw("\x93NUMPY").number(static_cast<std::uint8_t>(version)).number(std::uint8_t{0});
  if (version == 1) out.number(static_cast<std::uint16_t>(dictionary.size()));
  else out.number(static_cast<std::uint32_t>(dictionary.size()));
  return out.raw(dictionary).raw(data).text();
}

inline std::uint32_t crc32_of(std::string_view bytes) {
  std::uint32_t crc = 0xffffffff;
  for (const char c : bytes) {
    crc ^= static_cast<std::uint8_t>(c);
    for (int bit = 0; bit < 8; ++bit) crc = crc >> 1 ^ ((crc & 1) != 0 ? 0xedb88320 : 0);
  }
  return ~crc;
}

/// Valid deflate, though nothing gets smaller: blocks that are stored as they are.
inline std::string deflate_stored(std::string_view bytes) {
  Bytes out;
  do {
    const std::string_view block = bytes.substr(0, 65535);
    bytes.remove_prefix(block.size());
    const auto length = static_cast<std::uint16_t>(block.size());
    out.number(static_cast<std::uint8_t>(bytes.empty() ? 1 : 0))
        .number(length)
        .number(static_cast<std::uint16_t>(~length))
        .raw(block);
  } while (!bytes.empty());
  return out.text();
}

struct NpzEntry {
  std::string name;
  std::string data;  ///< unpacked
  bool deflated = false;
  bool zip64 = false;  ///< sizes in a zip64 field of the directory
  // Lies, where not 0 or empty.
  std::uint32_t crc = 0;
  std::uint64_t claimed_bytes = 0;
  std::string packed = {};
  std::string local_name = {};
  std::uint16_t flags = 0, method = 0;
  std::uint32_t offset_lie = 0;
};

inline std::string npz(const std::vector<NpzEntry>& entries, bool zip64_end = false) {
  Bytes out, directory;
  for (const NpzEntry& entry : entries) {
    const std::uint64_t local = entry.offset_lie != 0 ? entry.offset_lie : out.size();
    const std::string packed = !entry.packed.empty() ? entry.packed
                               : entry.deflated      ? deflate_stored(entry.data)
                                                     : entry.data;
    const std::uint64_t bytes = entry.claimed_bytes != 0 ? entry.claimed_bytes : entry.data.size();
    const auto method = static_cast<std::uint16_t>(entry.method != 0 ? entry.method : entry.deflated ? 8 : 0);
    const std::uint32_t crc = entry.crc != 0 ? entry.crc : crc32_of(entry.data);
    const std::string& name = entry.local_name.empty() ? entry.name : entry.local_name;
    const auto small = [&](std::uint64_t size) { return entry.zip64 ? 0xffffffffu : static_cast<std::uint32_t>(size); };
    // Local header: sizes may be elsewhere, so they are left 0 here.
    out.number<std::uint32_t>(0x04034b50)
        .number<std::uint16_t>(20)
        .number(entry.flags)
        .number(method)
        .number<std::uint32_t>(0)
        .number(crc)
        .number<std::uint32_t>(0)
        .number<std::uint32_t>(0)
        .number(static_cast<std::uint16_t>(name.size()))
        .number<std::uint16_t>(5)
        .raw(name)
        .raw("extra")
        .raw(packed);
    Bytes extra;
    if (entry.zip64)
      extra.number<std::uint16_t>(1)
          .number<std::uint16_t>(24)
          .number(bytes)
          .number(std::uint64_t{packed.size()})
          .number(local);
    directory.number<std::uint32_t>(0x02014b50)
        .number<std::uint16_t>(20)
        .number<std::uint16_t>(20)
        .number(entry.flags)
        .number(method)
        .number<std::uint32_t>(0)
        .number(crc)
        .number(small(packed.size()))
        .number(small(bytes))
        .number(static_cast<std::uint16_t>(entry.name.size()))
        .number(static_cast<std::uint16_t>(extra.size()))
        .number<std::uint16_t>(0)
        .zeros(8)
        .number(small(local))
        .raw(entry.name)
        .raw(extra.text());
  }
  const std::uint64_t begin = out.size();
  const auto count = static_cast<std::uint16_t>(entries.size());
  out.raw(directory.text());
  if (zip64_end) {
    const std::uint64_t end64 = out.size();
    out.number<std::uint32_t>(0x06064b50)
        .number<std::uint64_t>(44)
        .number<std::uint16_t>(45)
        .number<std::uint16_t>(45)
        .zeros(8)
        .number(std::uint64_t{count})
        .number(std::uint64_t{count})
        .number(std::uint64_t{directory.size()})
        .number(begin);
    out.number<std::uint32_t>(0x07064b50).number<std::uint32_t>(0).number(end64).number<std::uint32_t>(1);
  }
  out.number<std::uint32_t>(0x06054b50)
      .zeros(4)
      .number(zip64_end ? std::uint16_t{0xffff} : count)
      .number(zip64_end ? std::uint16_t{0xffff} : count)
      .number(zip64_end ? 0xffffffffu : static_cast<std::uint32_t>(directory.size()))
      .number(zip64_end ? 0xffffffffu : static_cast<std::uint32_t>(begin))
      .number<std::uint16_t>(0);
  return out.text();
}

}  // namespace rootdk::test
