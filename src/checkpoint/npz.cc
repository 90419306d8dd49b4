// .npy and .npz as checkpoints: one array called after its file, or one array for every entry.
#include <algorithm>
#include <filesystem>

#include "checkpoint/byte_reader.h"
#include "checkpoint/contents.h"
#include "checkpoint/npy_header.h"
#include "checkpoint/text.h"
#include "checkpoint/zip.h"

namespace rootdk::checkpoint {

namespace {

constexpr std::string_view kEnding = ".npy";

StoredTensor tensor_of(const Source& source, const ZipEntry& entry) {
  if (!entry.name.ends_with(kEnding) || entry.name.size() == kEnding.size())
    source.refuse_at(entry.listed_at, "zip entry {} is not an .npy", in_quotes(entry.name));
  StoredTensor tensor;
  const std::uint64_t begin = std::min(entry.bytes, kNpyPreludeBytes + kMaxNpyHeaderBytes);
  NpyHeader header;
  if (entry.deflated) {
    TensorInfo packed;
    packed.name = entry.name;
    packed.offset = entry.offset;
    packed.bytes = entry.bytes;
    const auto reader = inflating_reader(source, packed, {.packed_bytes = entry.packed_bytes, .crc = entry.crc});
    std::vector<std::byte> bytes(begin);
    reader->read(0, bytes);
    header = parse_npy_header(source, entry.offset, {reinterpret_cast<const char*>(bytes.data()), bytes.size()},
                              entry.bytes);
    tensor.deflated = Deflated{entry.packed_bytes, header.header_bytes, entry.crc};
  } else {
    header = parse_npy_header(source, entry.offset, source.text(entry.offset, begin), entry.bytes);
  }
  tensor.info = std::move(header.info);
  tensor.info.name = entry.name.substr(0, entry.name.size() - kEnding.size());
  tensor.info.offset = entry.offset + (entry.deflated ? 0 : header.header_bytes);
  tensor.info.compressed = entry.deflated;
  return tensor;
}

}  // namespace

Contents read_npz(const Source& source) {
  Contents contents;
  for (const ZipEntry& entry : read_zip(source)) contents.tensors.push_back(tensor_of(source, entry));
  sort_tensors(source, contents.tensors);
  return contents;
}

Contents read_npy(const Source& source) {
  const std::uint64_t begin = std::min(source.size(), kNpyPreludeBytes + kMaxNpyHeaderBytes);
  NpyHeader header = parse_npy_header(source, 0, source.text(0, begin), source.size());
  header.info.offset = header.header_bytes;
  const std::string name = source.path().stem().string();
  header.info.name = is_name(name) ? name : "array";
  Contents contents;
  contents.tensors.push_back({std::move(header.info)});
  return contents;
}

}  // namespace rootdk::checkpoint
