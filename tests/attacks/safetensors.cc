// Safetensors files that lie: the header's length, its JSON, shapes, offsets, names.
#include "attacks/attack.h"
#include "support/safetensors_writer.h"

namespace rootdk::test {

namespace {

Attack header(std::string name, std::string_view text, std::string_view data, std::string_view message) {
  return in_file(std::move(name), "a.safetensors", safetensors(text, data), message);
}

// One tensor "w" of these fields.
std::string tensor(std::string_view fields) { return "{\"w\":{" + std::string(fields) + "}}"; }

std::string ones(int count) {
  std::string list = "1";
  for (int i = 1; i < count; ++i) list += ",1";
  return list;
}

std::string nested(int depth) {
  return "{\"w\":" + std::string(static_cast<std::size_t>(depth), '[') +
         std::string(static_cast<std::size_t>(depth), ']') + "}";
}

}  // namespace

std::vector<Attack> safetensors_attacks() {
  const std::string_view eight = "12345678";
  return {
      in_file("empty file", "a.safetensors", "",
              "byte 0: the file ends in the header's length: 8 bytes are wanted, 0 are left"),
      in_file("half a length", "a.safetensors", "\x10",
              "byte 0: the file ends in the header's length: 8 bytes are wanted, 1 are left"),
      in_file("header longer than the file", "a.safetensors", Bytes().number(std::uint64_t{100}).raw("{}").text(),
              "byte 8: the file ends in the header: 100 bytes are wanted, 2 are left"),
      in_file("header of 2^63 bytes", "a.safetensors", Bytes().number(std::uint64_t{1} << 63).raw("{}").text(),
              "byte 0: the header's length is 9223372036854775808, but at most 100000000 is taken"),
      in_file("header of 2^64 − 8 bytes", "a.safetensors", Bytes().number(~std::uint64_t{7}).raw("{}").text(),
              "byte 0: the header's length is 18446744073709551608, but at most 100000000 is taken"),
      header("no header", "", "", "byte 8: the header does not begin with {"),
      header("space before the header", " {}", "", "byte 8: the header does not begin with {"),
      header("a list for a header", "[]", "", "byte 8: the header does not begin with {"),
      header("not JSON", "{w}", "", "byte 9: the header is not JSON here"),
      header("header without an end", "{\"w\":", "", "byte 13: the header is not JSON here"),
      header("two headers", "{}{}", "", "byte 10: the header is not JSON here"),
      header("a NUL behind the header", std::string_view("{}\0", 3), "", "byte 10: the header is not JSON here"),
      header("a header behind a NUL", std::string_view("{}  \0{\"w\":1}", 12), "",
             "byte 12: the header is not JSON here"),
      header("a NUL in the header", std::string_view("{\0}", 3), "", "byte 9: the header is not JSON here"),
      header("a comment", "{}//", "", "byte 10: the header is not JSON here"),
      header("not UTF-8", "{\"\xff\":1}", "", "byte 10: the header is not UTF-8 here"),
      header("overlong UTF-8", "{\"\xc0\xaf\":1}", "", "byte 10: the header is not UTF-8 here"),
      header("half a surrogate", R"({"\ud800":1})", "", "byte 16: the header is not JSON here"),
      header("deep nesting", nested(100000), "", "byte 13: \"w\" is a list, but an object is wanted"),
      header("deep nesting in the metadata", "{\"__metadata__\":{\"a\":" + std::string(100000, '['), "",
             "byte 29: __metadata__: \"a\" is a list, but a text is wanted"),
      header("the same tensor twice", R"({"w":{"dtype":"F32","shape":[],"data_offsets":[0,4]},"w":{}})", "1234",
             "byte 61: the header has the key \"w\" twice"),
      header("the same tensor twice, once in escapes",
             R"({"w":{"dtype":"F32","shape":[],"data_offsets":[0,4]},"\u0077":{}})", "1234",
             "byte 61: the header has the key \"w\" twice"),
      header("the same field twice", tensor(R"("dtype":"F32","dtype":"F64","shape":[],"data_offsets":[0,4])"), "1234",
             "byte 28: the header has the key \"dtype\" twice"),
      header("the same metadata twice", R"({"__metadata__":{"a":"1","a":"2"}})", "",
             "byte 33: the header has the key \"a\" twice"),
      header("a name of control characters", R"({"\u001b[2J":{"dtype":"F32","shape":[],"data_offsets":[0,4]}})", "1234",
             "byte 9: \"\\x1b[2J\" is empty or has control characters: not a tensor's name"),
      header("an empty name", R"({"":{"dtype":"F32","shape":[],"data_offsets":[0,4]}})", "1234",
             "byte 9: \"\" is empty or has control characters: not a tensor's name"),
      header("a number for a tensor", R"({"w":17})", "", "byte 13: \"w\" is 17, but an object is wanted"),
      header("metadata that are no texts", R"({"__metadata__":{"a":null}})", "",
             "byte 29: __metadata__: \"a\" is null, but a text is wanted"),
      header("metadata that are no object", R"({"__metadata__":"a"})", "",
             "byte 24: \"__metadata__\" is \"a\", but an object is wanted"),
      header("an unknown field", tensor(R"("dtype":"F32","shape":[],"strides":[])"), "",
             "byte 39: tensor \"w\": \"strides\" is not a field of a tensor"),
      header("no dtype", tensor(R"("shape":[],"data_offsets":[0,4])"), "1234", "byte 9: tensor \"w\" has no dtype"),
      header("no shape", tensor(R"("dtype":"F32","data_offsets":[0,4])"), "1234", "byte 9: tensor \"w\" has no shape"),
      header("no offsets", tensor(R"("dtype":"F32","shape":[])"), "1234", "byte 9: tensor \"w\" has no data_offsets"),
      header("an unknown dtype", tensor(R"("dtype":"F128","shape":[],"data_offsets":[0,16])"), "1234567812345678",
             "byte 22: tensor \"w\": dtype \"F128\" is not known"),
      header("a dtype of GGUF", tensor(R"("dtype":"Q4_0","shape":[32],"data_offsets":[0,18])"), "123456781234567812",
             "byte 22: tensor \"w\": dtype \"Q4_0\" is not known"),
      header("a number for a dtype", tensor(R"("dtype":32,"shape":[],"data_offsets":[0,4])"), "1234",
             "byte 22: tensor \"w\": dtype is 32, but a text is wanted"),
      header("a text for a shape", tensor(R"("dtype":"F32","shape":"2","data_offsets":[0,8])"), eight,
             "byte 36: tensor \"w\": shape is \"2\", but a list is wanted"),
      header("a negative extent", tensor(R"("dtype":"F32","shape":[-2],"data_offsets":[0,8])"), eight,
             "byte 37: tensor \"w\": shape has -2, but whole numbers from 0 to 9223372036854775807 are wanted"),
      header("half an extent", tensor(R"("dtype":"F32","shape":[2.0],"data_offsets":[0,8])"), eight,
             "byte 37: tensor \"w\": shape has 2, but whole numbers from 0 to 9223372036854775807 are wanted"),
      header("a list in a shape", tensor(R"("dtype":"F32","shape":[[2]],"data_offsets":[0,8])"), eight,
             "byte 37: tensor \"w\": shape has a list, but whole numbers from 0 to 9223372036854775807 are wanted"),
      header("an extent of 2^63", tensor(R"("dtype":"F32","shape":[9223372036854775808],"data_offsets":[0,8])"), eight,
             "byte 37: tensor \"w\": shape has 9223372036854775808, but whole numbers from 0 to 9223372036854775807 "
             "are wanted"),
      header("an extent of 2^65", tensor(R"("dtype":"F32","shape":[36893488147419103232],"data_offsets":[0,8])"), eight,
             "byte 37: tensor \"w\": shape has 3.6893488147419103e+19, but whole numbers from 0 to 9223372036854775807 "
             "are wanted"),
      header("a product that overflows to 2",
             tensor(R"("dtype":"F32","shape":[4294967296,4294967296,2],"data_offsets":[0,8])"), eight,
             "byte 9: tensor \"w\": no tensor of F32 can have the shape [4294967296, 4294967296, 2]"),
      header("bytes that overflow to 8", tensor(R"("dtype":"F32","shape":[4611686018427387906],"data_offsets":[0,8])"),
             eight, "byte 9: tensor \"w\": no tensor of F32 can have the shape [4611686018427387906]"),
      header("an overflow hidden by a 0",
             tensor(R"("dtype":"F32","shape":[4294967296,4294967296,0],"data_offsets":[0,0])"), "",
             "byte 9: tensor \"w\": no tensor of F32 can have the shape [4294967296, 4294967296, 0]"),
      header("half a byte", tensor(R"("dtype":"F4","shape":[3],"data_offsets":[0,1])"), "1",
             "byte 9: tensor \"w\": no tensor of F4 can have the shape [3]"),
      header("too many axes", tensor(R"("dtype":"F32","shape":[)" + ones(65) + R"(],"data_offsets":[0,4])"), "1234",
             "byte 165: tensor \"w\": more than 64 axes"),
      header("one offset", tensor(R"("dtype":"F32","shape":[1],"data_offsets":[4])"), "1234",
             "byte 9: tensor \"w\": data_offsets has 1 numbers, but two are wanted"),
      header("three offsets", tensor(R"("dtype":"F32","shape":[1],"data_offsets":[0,4,8])"), "1234",
             "byte 60: tensor \"w\": data_offsets has more than two numbers"),
      header("a negative offset", tensor(R"("dtype":"F32","shape":[1],"data_offsets":[-4,0])"), "1234",
             "byte 56: tensor \"w\": data_offsets has -4, but whole numbers from 0 to 18446744073709551615 are wanted"),
      header("offsets beyond the file", tensor(R"("dtype":"F32","shape":[2],"data_offsets":[0,8])"), "1234",
             "byte 9: tensor \"w\": data_offsets are 0 and 8, but the data have 4 bytes"),
      header("offsets of 2^64",
             tensor(R"("dtype":"F32","shape":[1],"data_offsets":[18446744073709551612,18446744073709551615])"), "1234",
             "byte 9: tensor \"w\": data_offsets are 18446744073709551612 and 18446744073709551615, but the data have "
             "4 bytes"),
      header("offsets the wrong way round", tensor(R"("dtype":"F32","shape":[1],"data_offsets":[8,4])"), eight,
             "byte 9: tensor \"w\": data_offsets are 8 and 4, but the data have 8 bytes"),
      header("a size that does not fit", tensor(R"("dtype":"F32","shape":[3],"data_offsets":[0,8])"), eight,
             "byte 9: tensor \"w\": 8 bytes, but F32 of shape [3] has 12"),
      header("tensors that overlap",
             R"({"a":{"dtype":"U8","shape":[5],"data_offsets":[0,5]},)"
             R"("b":{"dtype":"U8","shape":[4],"data_offsets":[4,8]}})",
             eight, "byte 61: tensor \"b\" begins at byte 117, inside tensor \"a\", which ends at 118"),
      header("tensors in the same place",
             R"({"b":{"dtype":"U8","shape":[8],"data_offsets":[0,8]},)"
             R"("a":{"dtype":"U8","shape":[8],"data_offsets":[0,8]}})",
             eight, "byte 9: tensor \"b\" begins at byte 113, inside tensor \"a\", which ends at 121"),
      header("nothing inside something",
             R"({"a":{"dtype":"U8","shape":[8],"data_offsets":[0,8]},)"
             R"("b":{"dtype":"U8","shape":[0],"data_offsets":[4,4]}})",
             eight, "byte 61: tensor \"b\" begins at byte 117, inside tensor \"a\", which ends at 121"),
      header("a gap between tensors",
             R"({"a":{"dtype":"U8","shape":[3],"data_offsets":[0,3]},)"
             R"("b":{"dtype":"U8","shape":[4],"data_offsets":[4,8]}})",
             eight, "byte 116: 1 bytes belong to no tensor"),
      header("a gap before the first", tensor(R"("dtype":"F32","shape":[1],"data_offsets":[4,8])"), eight,
             "byte 62: 4 bytes belong to no tensor"),
      header("bytes behind the last", tensor(R"("dtype":"F32","shape":[1],"data_offsets":[0,4])"), eight,
             "byte 66: 4 bytes belong to no tensor"),
      header("bytes and no tensor", "{}", eight, "byte 10: 8 bytes belong to no tensor"),
  };
}

}  // namespace rootdk::test
