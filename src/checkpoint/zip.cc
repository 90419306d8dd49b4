// End record, central directory, local headers: each field is held against the file's size and its twin.
#include "checkpoint/zip.h"

#include <algorithm>
#include <optional>
#include <set>

#include "checkpoint/cursor.h"
#include "checkpoint/ranges.h"
#include "checkpoint/text.h"

namespace rootdk::checkpoint {

namespace {

constexpr std::uint64_t kEndBytes = 22, kMaxComment = 65535, kLocatorBytes = 20, kEntryBytes = 46;
constexpr std::uint32_t kEndMark = 0x06054b50, kLocatorMark = 0x07064b50, kEnd64Mark = 0x06064b50,
                        kEntryMark = 0x02014b50, kLocalMark = 0x04034b50;
constexpr std::uint16_t kEncrypted = 1, kZip64 = 1;
constexpr std::uint64_t kMaxDirectoryBytes = std::uint64_t{1} << 26;
// A deflated byte gives at most 1032.
constexpr std::uint64_t kMostUnpacked = 1032;

struct Directory {
  std::uint64_t offset = 0, bytes = 0, entries = 0;
};

// The end record stands last, behind it only its own comment.
std::uint64_t find_end(const Source& source) {
  if (source.size() >= kEndBytes) {
    const std::uint64_t last = source.size() - kEndBytes, first = last - std::min(last, kMaxComment);
    for (std::uint64_t at = last + 1; at-- > first;) {
      Cursor cursor(source, at, source.size());
      if (cursor.number<std::uint32_t>("") != kEndMark) continue;
      cursor.skip(16, "");
      if (cursor.number<std::uint16_t>("") == source.size() - at - kEndBytes) return at;
    }
  }
  source.refuse_at(source.size(), "no zip directory ends here: the file is cut off, or not an .npz");
}

Directory find_directory(const Source& source) {
  const std::uint64_t end = find_end(source);
  Cursor cursor(source, end + 4, source.size());
  const auto disk = cursor.number<std::uint16_t>("the zip end record"),
             first_disk = cursor.number<std::uint16_t>("the zip end record");
  const auto here = cursor.number<std::uint16_t>("the zip end record");
  Directory directory;
  directory.entries = cursor.number<std::uint16_t>("the zip end record");
  directory.bytes = cursor.number<std::uint32_t>("the zip end record");
  directory.offset = cursor.number<std::uint32_t>("the zip end record");
  std::uint64_t before = end;
  if (end >= kLocatorBytes && Cursor(source, end - kLocatorBytes, end).number<std::uint32_t>("") == kLocatorMark) {
    before = end - kLocatorBytes;
    Cursor locator(source, before + 8, end);
    const auto end64 = locator.number<std::uint64_t>("the zip64 locator");
    if (end64 > before)
      source.refuse_at(before, "the zip64 end record is said to be at byte {}, which is behind this", end64);
    Cursor record(source, end64, before, "the zip64 locator begins");
    if (record.number<std::uint32_t>("the zip64 end record") != kEnd64Mark)
      source.refuse_at(end64, "a zip64 end record is wanted here");
    record.skip(28, "the zip64 end record");
    directory.entries = record.number<std::uint64_t>("the zip64 end record");
    directory.bytes = record.number<std::uint64_t>("the zip64 end record");
    directory.offset = record.number<std::uint64_t>("the zip64 end record");
    before = end64;
  } else if (disk != 0 || first_disk != 0 || here != directory.entries) {
    source.refuse_at(end, "a zip of several parts is not read");
  }
  if (directory.bytes > kMaxDirectoryBytes)
    source.refuse_at(end, "the zip directory has {} bytes, but at most {} are taken", directory.bytes,
                     kMaxDirectoryBytes);
  if (directory.offset > before || directory.bytes > before - directory.offset)
    source.refuse_at(end, "the zip directory is said to have {} bytes at byte {}, but it must end before byte {}",
                     directory.bytes, directory.offset, before);
  if (directory.entries > directory.bytes / kEntryBytes)
    source.refuse_at(end, "{} zip entries are claimed, but a directory of {} bytes has room for {} at most",
                     directory.entries, directory.bytes, directory.bytes / kEntryBytes);
  return directory;
}

// The wide numbers that stand for those with all bits set, in this order.
void read_zip64(const Source& source, Cursor extra, ZipEntry& entry, std::uint64_t& local) {
  constexpr std::uint64_t kElsewhere = 0xffffffff;
  if (entry.bytes != kElsewhere && entry.packed_bytes != kElsewhere && local != kElsewhere) return;
  while (extra.left() >= 4) {
    const auto id = extra.number<std::uint16_t>("");
    const auto length = extra.number<std::uint16_t>("");
    if (id != kZip64) {
      extra.skip(length, "a zip entry's extra field");
      continue;
    }
    extra.want(length, "a zip entry's extra field");
    for (std::uint64_t* field : {&entry.bytes, &entry.packed_bytes, &local})
      if (*field == kElsewhere) *field = extra.number<std::uint64_t>("a zip entry's zip64 field");
    return;
  }
  source.refuse_at(entry.listed_at, "zip entry {} has zip64 sizes, but no zip64 field", in_quotes(entry.name));
}

// The entry's own header repeats the directory's; its name and extra field may be of other lengths.
void find_bytes(const Source& source, ZipEntry& entry, std::uint64_t local, std::uint16_t method,
                std::uint64_t directory) {
  if (local > directory)
    source.refuse_at(entry.listed_at, "zip entry {} is said to be at byte {}, behind the entries",
                     in_quotes(entry.name), local);
  Cursor cursor(source, local, directory, "the zip directory begins");
  if (cursor.number<std::uint32_t>("a zip entry") != kLocalMark)
    source.refuse_at(local, "zip entry {} is not here", in_quotes(entry.name));
  cursor.skip(4, "a zip entry");
  const bool same_method = cursor.number<std::uint16_t>("a zip entry") == method;
  cursor.skip(16, "a zip entry");
  const auto name = cursor.number<std::uint16_t>("a zip entry"), extra = cursor.number<std::uint16_t>("a zip entry");
  if (!same_method || cursor.text(name, "a zip entry's name") != entry.name)
    source.refuse_at(local, "zip entry {} is called or packed differently here than in the directory",
                     in_quotes(entry.name));
  cursor.skip(extra, "a zip entry's extra field");
  cursor.want(entry.packed_bytes, "a zip entry's bytes");
  entry.offset = cursor.position();
}

ZipEntry entry_here(const Source& source, Cursor& cursor, std::uint64_t directory) {
  constexpr const char* kWhat = "a zip directory's entry";
  ZipEntry entry;
  entry.listed_at = cursor.position();
  if (cursor.number<std::uint32_t>(kWhat) != kEntryMark)
    source.refuse_at(entry.listed_at, "an entry of the zip directory is wanted here");
  cursor.skip(4, kWhat);
  const auto flags = cursor.number<std::uint16_t>(kWhat), method = cursor.number<std::uint16_t>(kWhat);
  cursor.skip(4, kWhat);
  entry.crc = cursor.number<std::uint32_t>(kWhat);
  entry.packed_bytes = cursor.number<std::uint32_t>(kWhat);
  entry.bytes = cursor.number<std::uint32_t>(kWhat);
  const auto name = cursor.number<std::uint16_t>(kWhat), extra = cursor.number<std::uint16_t>(kWhat);
  const auto comment = cursor.number<std::uint16_t>(kWhat);
  cursor.skip(8, kWhat);
  std::uint64_t local = cursor.number<std::uint32_t>(kWhat);
  entry.name = cursor.text(name, kWhat);
  if (!is_name(entry.name))
    source.refuse_at(entry.listed_at, "a zip entry is called {}: empty, not UTF-8 or with control characters",
                     in_quotes(entry.name));
  const std::uint64_t extra_begin = cursor.position();
  cursor.skip(extra, kWhat);
  read_zip64(source, Cursor(source, extra_begin, cursor.position(), "the field ends"), entry, local);
  cursor.skip(comment, kWhat);
  if ((flags & kEncrypted) != 0) source.refuse_at(entry.listed_at, "zip entry {} is encrypted", in_quotes(entry.name));
  if (method != 0 && method != 8)
    source.refuse_at(entry.listed_at, "zip entry {} is packed by method {}: only 0 (stored) and 8 (deflated) are read",
                     in_quotes(entry.name), method);
  entry.deflated = method == 8;
  if (!entry.deflated && entry.bytes != entry.packed_bytes)
    source.refuse_at(entry.listed_at, "zip entry {} is stored, but has {} bytes packed and {} unpacked",
                     in_quotes(entry.name), entry.packed_bytes, entry.bytes);
  find_bytes(source, entry, local, method, directory);
  if (entry.deflated && entry.bytes / kMostUnpacked > entry.packed_bytes)
    source.refuse_at(entry.listed_at, "zip entry {} claims {} bytes from {}, more than deflate can pack",
                     in_quotes(entry.name), entry.bytes, entry.packed_bytes);
  return entry;
}

}  // namespace

std::vector<ZipEntry> read_zip(const Source& source) {
  const Directory directory = find_directory(source);
  Cursor cursor(source, directory.offset, directory.offset + directory.bytes, "the zip directory ends");
  std::vector<ZipEntry> entries;
  std::vector<Range> ranges;
  std::set<std::string, std::less<>> names;
  for (std::uint64_t i = 0; i < directory.entries; ++i) {
    entries.push_back(entry_here(source, cursor, directory.offset));
    const ZipEntry& entry = entries.back();
    if (!names.insert(entry.name).second)
      source.refuse_at(entry.listed_at, "two zip entries are called {}", in_quotes(entry.name));
    ranges.push_back({entry.offset, entry.offset + entry.packed_bytes, entry.listed_at, entry.name});
  }
  check_ranges(source, ranges, 0, directory.offset, Gaps::kAllow);
  return entries;
}

}  // namespace rootdk::checkpoint
