// .npy and .npz files that lie: dictionaries, shapes, zip's records, streams that inflate without end.
#include <cstdio>

#include "attacks/attack.h"
#include "support/npz_writer.h"

namespace rootdk::test {

namespace {

// The dictionary begins at byte 10.
Attack array(std::string name, std::string_view dictionary, std::string_view data, std::string_view message) {
  return in_file(std::move(name), "a.npy", npy(dictionary, data), message);
}

Attack inflating(Attack attack) {
  attack.inflates = true;
  return attack;
}

Attack archive(std::string name, std::string bytes, std::string_view message) {
  return in_file(std::move(name), "a.npz", std::move(bytes), message);
}

std::string hex(std::uint32_t number) {
  char text[9];
  std::snprintf(text, sizeof(text), "%08x", static_cast<unsigned>(number));
  return text;
}

constexpr const char* kOne = "{'descr': '<f4', 'fortran_order': False, 'shape': (1,)}";

}  // namespace

std::vector<Attack> npy_attacks() {
  const std::string good = npy(kOne, "1234");
  const NpzEntry entry = {.name = "w.npy", .data = good};
  const std::string zip = npz({entry});
  const auto with = [&](const auto& change) {
    NpzEntry changed = entry;
    change(changed);
    return npz({changed});
  };
  // The end record of `zip` with one field replaced.
  const auto with_end = [&](std::size_t place, auto number) {
    std::string bytes = zip;
    const std::string field = Bytes().number(number).text();
    return bytes.replace(bytes.size() - 22 + place, field.size(), field);
  };
  const std::string entry_at = std::to_string(zip.size() - 22 - 46 - 5), end_at = std::to_string(zip.size() - 22);
  return {
      in_file("empty file", "a.npy", "", "byte 0: an .npy begins with \"\\x93NUMPY\""),
      in_file("another magic", "a.npy", "\x93NUMPI\x01\x00", "byte 0: an .npy begins with \"\\x93NUMPY\""),
      in_file("no version", "a.npy", "\x93NUMPY\x01", "byte 0: the .npy ends in its version"),
      in_file("version 4", "a.npy", npy(kOne, "1234", 4), "byte 6: .npy version 4.0: only 1.0, 2.0 and 3.0 are read"),
      in_file("no length", "a.npy", std::string("\x93NUMPY\x01\x00\x10", 9),
              "byte 8: the .npy ends in its header's length"),
      in_file("header longer than the file", "a.npy", npy(kOne).replace(8, 2, "\xff\x7f"),
              "byte 8: the header's length is 32767, but 55 bytes follow"),
      in_file("header of 4 GiB", "a.npy", npy(kOne, "1234", 2).replace(8, 4, "\xff\xff\xff\xff"),
              "byte 8: the header's length is 4294967295, but at most 65535 is taken"),
      array("no dictionary", "[1, 2]", "", "byte 10: the header is wrong here: a dictionary is wanted"),
      array("nothing", "", "", "byte 10: the header is wrong here: a dictionary is wanted"),
      array("code", "{'descr': __import__('os').system('true')}", "",
            "byte 20: the header is wrong here: a type is wanted"),
      array("a key without an end", "{'descr", "", "byte 11: the header ends in a key"),
      array("no colon", "{'descr' '<f4'}", "", "byte 19: the header is wrong here: a colon is wanted"),
      array("no comma", "{'descr': '<f4' 'shape': ()}", "",
            "byte 26: the header is wrong here: a comma or the dictionary's end is wanted"),
      array("an unknown key", "{'order': 'C'}", "",
            "byte 11: the header has the key \"order\", which is none of descr, fortran_order and shape"),
      array("a key twice", "{'shape': (), 'shape': ()}", "", "byte 24: the header has the key \"shape\" twice"),
      array("no shape", "{'descr': '<f4', 'fortran_order': False}", "1234", "byte 10: the header has no shape"),
      array("text behind the dictionary", "{'descr': '<f4', 'fortran_order': False, 'shape': (1,)} + 1", "1234",
            "byte 66: the header goes on after its dictionary"),
      array("Python objects", "{'descr': '|O', 'fortran_order': False, 'shape': (1,)}", "pickle",
            "byte 20: descr \"|O\" is of Python objects: those are pickles, which can run code, and are never read"),
      array("records", "{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (1,)}", "1234",
            "byte 20: descr is a list: arrays of records are not read"),
      array("complex numbers", "{'descr': '<c8', 'fortran_order': False, 'shape': (1,)}", "12345678",
            "byte 20: descr \"<c8\" is not known: f2 to f8, i1 to i8, u1 to u8 and b1 are, behind <, > or |"),
      array("four bytes of no order", "{'descr': '|f4', 'fortran_order': False, 'shape': (1,)}", "1234",
            "byte 20: descr \"|f4\" is not known: f2 to f8, i1 to i8, u1 to u8 and b1 are, behind <, > or |"),
      array("an escape in the type", "{'descr': '\x1b[2J', 'fortran_order': False, 'shape': (1,)}", "1234",
            "byte 20: descr \"\\x1b[2J\" is not known: f2 to f8, i1 to i8, u1 to u8 and b1 are, behind <, > or |"),
      array("an order that is neither", "{'descr': '<f4', 'fortran_order': 1, 'shape': (1,)}", "1234",
            "byte 44: fortran_order is neither True nor False"),
      array("a number for a shape", "{'descr': '<f4', 'fortran_order': False, 'shape': 1}", "1234",
            "byte 60: the header is wrong here: a tuple is wanted"),
      array("a number in brackets for a shape", "{'descr': '<f4', 'fortran_order': False, 'shape': (1)}", "1234",
            "byte 61: shape is a number, but a tuple is wanted"),
      array("a negative extent", "{'descr': '<f4', 'fortran_order': False, 'shape': (-1,)}", "1234",
            "byte 61: shape has something that is not a whole number"),
      array("an extent of 2^63", "{'descr': '<f4', 'fortran_order': False, 'shape': (9223372036854775808,)}", "1234",
            "byte 61: shape has an extent beyond 9223372036854775807"),
      array("a product that overflows to 1",
            "{'descr': '<f4', 'fortran_order': False, 'shape': (4294967296, 4294967296)}", "1234",
            "byte 10: no array of F32 can have the shape [4294967296, 4294967296]"),
      array("an overflow hidden by a 0",
            "{'descr': '<f4', 'fortran_order': True, 'shape': (4294967296, 4294967296, 0)}", "",
            "byte 10: no array of F32 can have the shape [4294967296, 4294967296, 0]"),
      array("too few numbers", "{'descr': '<f4', 'fortran_order': False, 'shape': (2,)}", "1234",
            "byte 65: 4 bytes follow the header, but F32 of shape [2] has 8"),
      array("too many numbers", kOne, "12345678", "byte 65: 8 bytes follow the header, but F32 of shape [1] has 4"),

      archive("empty file", "", "byte 0: no zip directory ends here: the file is cut off, or not an .npz"),
      archive("cut off", zip.substr(0, zip.size() - 1),
              "byte " + std::to_string(zip.size() - 1) +
                  ": no zip directory ends here: the file is cut off, or not an .npz"),
      archive("several parts", with_end(4, std::uint16_t{1}),
              "byte " + end_at + ": a zip of several parts is not read"),
      archive("2^16 entries", with_end(8, std::uint32_t{0xffffffff}),
              "byte " + end_at + ": 65535 zip entries are claimed, but a directory of 51 bytes has room for 1 at most"),
      archive("a directory beyond the file", with_end(16, std::uint32_t{0x7fffffff}),
              "byte " + end_at +
                  ": the zip directory is said to have 51 bytes at byte 2147483647, but it must end before byte " +
                  end_at),
      archive("a directory of 1 GiB", with_end(12, std::uint32_t{1} << 30),
              "byte " + end_at + ": the zip directory has 1073741824 bytes, but at most 67108864 are taken"),
      archive(
          "a zip64 record behind itself",
          [&] {
            std::string bytes = npz({entry}, true);
            return bytes.replace(bytes.size() - 22 - 12, 8, Bytes().number(~std::uint64_t{0}).text());
          }(),
          "byte " + std::to_string(npz({entry}, true).size() - 42) +
              ": the zip64 end record is said to be at byte 18446744073709551615, which is behind this"),
      archive(
          "2^60 entries in zip64",
          [&] {
            std::string bytes = npz({entry}, true);
            return bytes.replace(bytes.size() - 22 - 20 - 24, 8, Bytes().number(std::uint64_t{1} << 60).text());
          }(),
          "byte " + std::to_string(npz({entry}, true).size() - 22) +
              ": 1152921504606846976 zip entries are claimed, but a directory of 51 bytes has room for 1 at most"),
      archive("an entry behind the entries", with([](NpzEntry& e) { e.offset_lie = 0x7fffffff; }),
              "byte " + entry_at + ": zip entry \"w.npy\" is said to be at byte 2147483647, behind the entries"),
      archive("an entry where there is none", with([](NpzEntry& e) { e.offset_lie = 1; }),
              "byte 1: zip entry \"w.npy\" is not here"),
      archive("an entry of another name", with([](NpzEntry& e) { e.local_name = "v.npy"; }),
              "byte 0: zip entry \"w.npy\" is called or packed differently here than in the directory"),
      archive("an encrypted entry", with([](NpzEntry& e) { e.flags = 1; }),
              "byte " + entry_at + ": zip entry \"w.npy\" is encrypted"),
      archive("an entry packed by bzip2", with([](NpzEntry& e) { e.method = 12; }),
              "byte " + entry_at +
                  ": zip entry \"w.npy\" is packed by method 12: only 0 (stored) and 8 (deflated) are read"),
      archive("a stored entry of two sizes", with([](NpzEntry& e) { e.claimed_bytes = 1000; }),
              "byte " + entry_at + ": zip entry \"w.npy\" is stored, but has 69 bytes packed and 1000 unpacked"),
      archive("a bomb",
              with([](NpzEntry& e) { e.deflated = e.zip64 = true, e.claimed_bytes = std::uint64_t{1} << 50; }),
              "byte 114: zip entry \"w.npy\" claims 1125899906842624 bytes from 74, more than deflate can pack"),
      inflating(archive("a stream that is not deflate",
                        with([](NpzEntry& e) { e.deflated = true, e.packed = "\xff\xff\xff\xff"; }),
                        "byte 41: \"w.npy\" cannot be unpacked: 0 of 69 bytes were there")),
      inflating(archive("a stream that ends early",
                        with([](NpzEntry& e) { e.deflated = true, e.packed = deflate_stored("\x93NUMPY"); }),
                        "byte 51: \"w.npy\" cannot be unpacked: 6 of 69 bytes were there")),
      inflating(archive(
          "a stream of another checksum", with([](NpzEntry& e) { e.deflated = true, e.crc = 0x12345678; }),
          "byte 40: \"w.npy\" is damaged: its checksum is " + hex(crc32_of(good)) + ", but 12345678 is wanted")),
      archive("an entry that is no array", npz({{.name = "data.pkl", .data = "pickle"}}),
              "byte 49: zip entry \"data.pkl\" is not an .npy"),
      archive("an entry without a name", npz({{.name = ".npy", .data = good}}),
              "byte 108: zip entry \".npy\" is not an .npy"),
      archive("an entry that is not UTF-8", npz({{.name = "\xff.npy", .data = good}}),
              "byte 109: a zip entry is called \"\\xff.npy\": empty, not UTF-8 or with control characters"),
      archive("an entry twice", npz({entry, entry}), "byte 269: two zip entries are called \"w.npy\""),
      archive(
          "entries in the same place",
          [&] {
            // The second says that it begins within the first, whose numbers are another entry.
            const std::string inner = npz({{.name = "v.npy", .data = good}}).substr(0, 109);
            const NpzEntry outer = {.name = "w.npy",
                                    .data = npy("{'descr': '|u1', 'fortran_order': False, 'shape': (109,)}", inner)};
            NpzEntry hidden = {.name = "v.npy", .data = good};
            hidden.offset_lie = 40 + static_cast<std::uint32_t>(outer.data.size() - inner.size());
            return npz({outer, hidden});
          }(),
          "byte 376: tensor \"v.npy\" begins at byte 147, inside tensor \"w.npy\", which ends at 216"),
      archive("an array that is wrong", npz({{.name = "w.npy", .data = npy(kOne, "12345678")}}),
              "byte 105: 8 bytes follow the header, but F32 of shape [1] has 4"),
  };
}

}  // namespace rootdk::test
