// GGUF files that lie: counts, lengths, types, offsets and nesting.
#include "attacks/attack.h"
#include "support/gguf_writer.h"

namespace rootdk::test {

namespace {

Attack file(std::string name, std::string bytes, std::string_view message) {
  return in_file(std::move(name), "a.gguf", std::move(bytes), message);
}

// A first pair "a" of this type; its value begins at byte 37.
std::string value(std::uint32_t type, std::string_view bytes) { return GgufWriter().pair("a", type, bytes).bytes(); }

// One tensor, described from byte 24 on.
std::string tensor(GgufTensor tensor) { return GgufWriter().tensor(std::move(tensor)).bytes(); }

std::string deep_array(int depth) {
  std::string bytes = gguf_array(kU8, 1, "x");
  for (int i = 1; i < depth; ++i) bytes = gguf_array(kArray, 1, bytes);
  return bytes;
}

}  // namespace

std::vector<Attack> gguf_attacks() {
  const std::uint64_t huge = std::uint64_t{1} << 60;
  GgufWriter other_magic, version_1, version_9, big_endian, many_tensors, many_pairs, twice, more_pairs, aligned;
  other_magic.magic = "GGML";
  version_1.version = 1;
  version_9.version = 9;
  big_endian.version = 0x03000000;
  many_tensors.tensor_count = huge;
  many_pairs.pair_count = huge;
  more_pairs.pair_count = 2;
  more_pairs.number("a", kU8, std::uint8_t{1}).tensor({"w", {1}, kGgmlF32, "1234"});
  twice.number("a", kU8, std::uint8_t{1}).number("a", kU8, std::uint8_t{2});
  const auto alignment = [](auto number) {
    return GgufWriter().number("general.alignment", sizeof(number) == 4 ? kU32 : kU64, number).bytes();
  };
  constexpr const char* kAlignment =
      "byte 24: general.alignment must be a whole number, a multiple of 8 from 8 to 2147483648";
  const std::string four = "1234";
  return {
      file("empty file", "", "byte 0: the file ends in the first four bytes: 4 bytes are wanted, 0 are left"),
      file("another magic", other_magic.bytes(), "byte 0: a GGUF file begins with \"GGUF\""),
      file("version 1", version_1.bytes(), "byte 4: GGUF version 1: only 2 and 3 are read"),
      file("version 9", version_9.bytes(), "byte 4: GGUF version 9: only 2 and 3 are read"),
      file("big-endian", big_endian.bytes(), "byte 4: a big-endian GGUF file: only little-endian ones are read"),
      file("2^60 tensors", many_tensors.bytes(),
           "byte 8: 1152921504606846976 tensors are claimed, but the 8 bytes that follow have room for 0 at most"),
      file("2^60 pairs", many_pairs.bytes(),
           "byte 16: 1152921504606846976 metadata pairs are claimed, but the 0 bytes that follow have room for 0 at "
           "most"),
      file("more pairs than there are", more_pairs.bytes(),
           "byte 60: a tensor's name is \"\": empty, not UTF-8 or with control characters"),
      file("a key of 2^60 bytes",
           GgufWriter().number("a", kU8, std::uint8_t{1}).bytes().replace(24, 8, Bytes().number(huge).text()),
           "byte 24: a metadata key has 1152921504606846976 bytes, but at most 65535 are taken"),
      file("a key that is not UTF-8", GgufWriter().number("\xff", kU8, std::uint8_t{1}).bytes(),
           "byte 32: a metadata key is \"\\xff\": empty, not UTF-8 or with control characters"),
      file("an empty key", GgufWriter().text("", "12345678").bytes(),
           "byte 32: a metadata key is \"\": empty, not UTF-8 or with control characters"),
      file("a key twice", twice.bytes(), "byte 38: the metadata have the key \"a\" twice"),
      file("an unknown type", value(13, "12345678"), "byte 33: value type 13 is not known"),
      file("a boolean of 2", value(kBool, "\x02"), "byte 37: a boolean is 2, but 0 or 1 is wanted"),
      file("a number cut off", value(kU64, "1234"),
           "byte 37: the file ends in a value: 8 bytes are wanted, 4 are left"),
      file("a text of 2^60 bytes", value(kText, Bytes().number(huge).raw(four).text()),
           "byte 45: the file ends in a text: 1152921504606846976 bytes are wanted, 4 are left"),
      file("an array of 2^60 numbers", value(kArray, gguf_array(kU64, huge, four)),
           "byte 41: an array claims 1152921504606846976 values, but the 4 bytes that follow have room for 0 at most"),
      file("an array of 2^61 numbers, 0 bytes once multiplied",
           value(kArray, gguf_array(kU64, std::uint64_t{1} << 61, four)),
           "byte 41: an array claims 2305843009213693952 values, but the 4 bytes that follow have room for 0 at most"),
      file("an array of 2^60 texts", value(kArray, gguf_array(kText, huge, gguf_text("x"))),
           "byte 41: an array claims 1152921504606846976 values, but the 9 bytes that follow have room for 1 at most"),
      file("a long text in an array", value(kArray, gguf_array(kText, 1, Bytes().number(huge).text())),
           "byte 57: the file ends in a text: 1152921504606846976 bytes are wanted, 0 are left"),
      file("an array of unknown things", value(kArray, gguf_array(static_cast<GgufType>(77), 1, four)),
           "byte 37: value type 77 is not known"),
      file("a boolean of 3 in an array", value(kArray, gguf_array(kBool, 2, "\x01\x03")),
           "byte 50: a boolean is 3, but 0 or 1 is wanted"),
      file("deep arrays", value(kArray, deep_array(10000)), "byte 97: arrays are nested deeper than 4"),
      file("an alignment of 0", alignment(std::uint32_t{0}), kAlignment),
      file("an alignment of 12", alignment(std::uint32_t{12}), kAlignment),
      file("an alignment of 2^63", alignment(std::uint64_t{1} << 63), kAlignment),
      file("a text for an alignment", GgufWriter().text("general.alignment", "32").bytes(), kAlignment),
      file("a tensor's name of 2^60 bytes",
           tensor({"w", {1}, kGgmlF32, four}).replace(24, 8, Bytes().number(huge).text()),
           "byte 24: a tensor's name has 1152921504606846976 bytes, but at most 65535 are taken"),
      file("a tensor's name that is not UTF-8", tensor({"\xc3(", {1}, kGgmlF32, four}),
           "byte 32: a tensor's name is \"\\xc3(\": empty, not UTF-8 or with control characters"),
      file("a tensor's name with an escape", tensor({"\x1b]0;", {1}, kGgmlF32, four}),
           "byte 32: a tensor's name is \"\\x1b]0;\": empty, not UTF-8 or with control characters"),
      file("a tensor twice", GgufWriter().tensor({"w", {1}, kGgmlF32, four}).tensor({"w", {1}, kGgmlF32, four}).bytes(),
           "byte 57: two tensors have the name \"w\""),
      file("five axes", tensor({"w", {1, 1, 1, 1, 1}, kGgmlF32, four}),
           "byte 24: tensor \"w\": 5 axes, but at most 4 are taken"),
      file("2^32 − 1 axes", tensor({"w", {}, kGgmlF32, four}).replace(33, 4, "\xff\xff\xff\xff"),
           "byte 24: tensor \"w\": 4294967295 axes, but at most 4 are taken"),
      file("an extent of 2^63", tensor({"w", {std::uint64_t{1} << 63}, kGgmlF32, four}),
           "byte 24: tensor \"w\": an extent of 9223372036854775808, but at most 9223372036854775807 is taken"),
      file("a product that overflows", tensor({"w", {4294967296, 4294967296, 2}, kGgmlF32, four}),
           "byte 24: tensor \"w\": no tensor of F32 can have the shape [2, 4294967296, 4294967296]"),
      file("an overflow hidden by a 0", tensor({"w", {0, 4294967296, 4294967296}, kGgmlF32, ""}),
           "byte 24: tensor \"w\": no tensor of F32 can have the shape [4294967296, 4294967296, 0]"),
      file("a row of half a block", tensor({"w", {48, 2}, kGgmlQ4_0, std::string(54, '\0')}),
           "byte 24: tensor \"w\": no tensor of Q4_0 can have the shape [2, 48]"),
      file("a type that was withdrawn", tensor({"w", {32}, 4, std::string(64, '\0')}),
           "byte 24: tensor \"w\": type 4 is not known"),
      file("a type of 2^32 − 1", tensor({"w", {32}, 0xffffffff, std::string(64, '\0')}),
           "byte 24: tensor \"w\": type 4294967295 is not known"),
      file("an offset that is not aligned", tensor({"w", {1}, kGgmlF32, four, 4}),
           "byte 24: tensor \"w\": offset 4 is not a multiple of the alignment, 32"),
      file("an offset beyond the file", tensor({"w", {1}, kGgmlF32, four, 32}),
           "byte 24: tensor \"w\": 4 bytes at offset 32, but the data have 4 bytes"),
      file("an offset of 2^64 − 32", tensor({"w", {1}, kGgmlF32, four, ~std::uint64_t{31}}),
           "byte 24: tensor \"w\": 4 bytes at offset 18446744073709551584, but the data have 4 bytes"),
      file("more data than the file has", tensor({"w", {std::uint64_t{1} << 40}, kGgmlF32, four}),
           "byte 24: tensor \"w\": 4398046511104 bytes at offset 0, but the data have 4 bytes"),
      file("tensors that overlap",
           GgufWriter()
               .tensor({"a", {16}, kGgmlF32, std::string(64, '1'), 0})
               .tensor({"b", {16}, kGgmlF32, std::string(64, '2'), 32})
               .bytes(),
           "byte 57: tensor \"b\" begins at byte 128, inside tensor \"a\", which ends at 160"),
      file("tensors in the same place",
           GgufWriter().tensor({"a", {1}, kGgmlF32, four, 0}).tensor({"b", {1}, kGgmlF32, four, 0}).bytes(),
           "byte 57: tensor \"b\" begins at byte 96, inside tensor \"a\", which ends at 100"),
      {"texts without end in a hole", "a.gguf",
       "HERE/a.gguf: byte 41: an array claims 268435456 values, but the 1073741775 bytes that follow have room for "
       "134217721 at "
       "most",
       [=](const std::filesystem::path& here) {
         // 2^28 empty texts, for which there is room in these 3 GiB of nothing. With more of it walking them would take
         // hours.
         write_file(here / "a.gguf", value(kArray, gguf_array(kText, std::uint64_t{1} << 28, "")));
         std::filesystem::resize_file(here / "a.gguf", std::uint64_t{3} << 30);
       }},
  };
}

}  // namespace rootdk::test
