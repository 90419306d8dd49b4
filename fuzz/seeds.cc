// usage: seeds DIRECTORY. Writes what the fuzzers start from into a folder for each: sound files of every kind, and
// tests/attacks/.
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include "attacks/attack.h"
#include "support/files.h"
#include "support/gguf_writer.h"
#include "support/npz_writer.h"
#include "support/safetensors_writer.h"

namespace {

namespace fs = std::filesystem;
using namespace rootdk::test;

constexpr std::uintmax_t kLargestSeed = 1 << 16;

// Which target reads a file of this name; none if empty.
std::string target_of(const fs::path& file) {
  if (file.native().ends_with(".index.json")) return "index";
  const std::string ending = file.extension().string();
  return ending == ".safetensors" || ending == ".gguf" || ending == ".npy" || ending == ".npz" ? ending.substr(1) : "";
}

class Seeds {
 public:
  explicit Seeds(fs::path root) : root_(std::move(root)) {}

  void add(const std::string& target, const std::string& bytes) {
    fs::create_directories(root_ / target);
    write_file(root_ / target / std::to_string(++count_), bytes);
    // The target "header" takes a header without its length, behind the number of bytes of data.
    std::uint64_t header = 0;
    if (target != "safetensors" || bytes.size() < sizeof(header)) return;
    std::memcpy(&header, bytes.data(), sizeof(header));
    if (header <= bytes.size() - 8 && bytes.size() - 8 - header < 256)
      add("header", static_cast<char>(bytes.size() - 8 - header) + bytes.substr(8, header));
  }
  void add(const std::vector<Attack>& attacks) {
    for (const Attack& attack : attacks) {
      const TemporaryDirectory built;
      attack.build(built.path());
      for (const auto& entry : fs::recursive_directory_iterator(built.path())) {
        const std::string target = target_of(entry.path());
        if (!target.empty() && entry.symlink_status().type() == fs::file_type::regular &&
            entry.file_size() <= kLargestSeed)
          add(target, read_file(entry.path()));
      }
    }
  }

 private:
  fs::path root_;
  int count_ = 0;
};

std::string gguf_of_everything() {
  GgufWriter writer;
  writer.number("general.alignment", kU32, std::uint32_t{32}).text("general.name", "seed");
  for (const std::uint32_t type : {kU8, kI8, kU16, kI16, kU32, kI32, kF32, kBool, kU64, kI64, kF64}) {
    constexpr std::size_t kSizes[] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
    const std::string zeros(kSizes[type], '\0');
    writer.pair("value." + std::to_string(type), type, zeros);
    writer.pair("array." + std::to_string(type), kArray, gguf_array(static_cast<GgufType>(type), 2, zeros + zeros));
  }
  writer.pair("texts", kArray, gguf_array(kText, 2, gguf_text("a") + gguf_text("bc")));
  writer.pair("arrays", kArray, gguf_array(kArray, 1, gguf_array(kU8, 2, "ab")));
  struct Kind {
    GgmlType type;
    std::uint64_t values, bytes;
  };
  for (const Kind& kind : {Kind{kGgmlF32, 1, 4},
                           {kGgmlF16, 1, 2},
                           {kGgmlBF16, 1, 2},
                           {kGgmlI8, 1, 1},
                           {kGgmlI64, 1, 8},
                           {kGgmlF64, 1, 8},
                           {kGgmlQ4_0, 32, 18},
                           {kGgmlQ4_1, 32, 20},
                           {kGgmlQ5_0, 32, 22},
                           {kGgmlQ5_1, 32, 24},
                           {kGgmlQ8_0, 32, 34},
                           {kGgmlQ2_K, 256, 84},
                           {kGgmlQ4_K, 256, 144},
                           {kGgmlQ5_K, 256, 176},
                           {kGgmlQ6_K, 256, 210}})
    writer.tensor({"t" + std::to_string(kind.type), {kind.values, 2}, kind.type, std::string(2 * kind.bytes, '\x11')});
  return writer.bytes();
}

void add_arrays(Seeds& seeds) {
  std::vector<NpzEntry> entries;
  for (const char* descr : {"<f2", "<f4", ">f8", "|i1", "<i2", ">i4", "<i8", "|u1", "<u2", ">u4", "<u8", "|b1"})
    for (const char* order : {"True", "False"}) {
      const std::string dictionary =
          std::string("{'descr': '") + descr + "', 'fortran_order': " + order + ", 'shape': (2, 3, 2), }\n";
      const std::string array = npy(dictionary, std::string(static_cast<std::size_t>(12 * (descr[2] - '0')), '\x11'));
      seeds.add("npy", array);
      entries.push_back({.name = "a" + std::to_string(entries.size()) + ".npy",
                         .data = array,
                         .deflated = entries.size() % 2 == 0,
                         .zip64 = entries.size() % 3 == 0});
    }
  seeds.add("npz", npz(entries));
  seeds.add("npz", npz({entries.front(), entries.back()}, true));
  // Compressed by the fixed code of deflate: 40 times the letter a.
  seeds.add("npz", npz({{.name = "a.npy",
                         .data = std::string(40, 'a'),
                         .deflated = true,
                         .packed = std::string("\x4b\x24\x0e\x00\x00", 5)}}));
}

}  // namespace

int main(int count, char** arguments) {
  if (count != 2) return 2;
  Seeds seeds(arguments[1]);
  seeds.add("safetensors", safetensors("{}"));
  seeds.add("safetensors", safetensors(R"({"__metadata__":{"format":"pt","é":"\u00e9\n"},)"
                                       R"("w":{"dtype":"F32","shape":[1,2],"data_offsets":[0,8]},)"
                                       R"("v":{"dtype":"BF16","shape":[3],"data_offsets":[8,14]},)"
                                       R"("s":{"dtype":"F16","shape":[],"data_offsets":[14,16]},)"
                                       R"("e":{"dtype":"BOOL","shape":[0,4],"data_offsets":[16,16]},)"
                                       R"("i":{"dtype":"I64","shape":[1],"data_offsets":[16,24]}} )",
                                       std::string(24, '\x11')));
  seeds.add("gguf", GgufWriter().bytes());
  seeds.add("gguf", gguf_of_everything());
  seeds.add("index", R"({"metadata":{"total_size":1e3,"x":[{},null,true,-1]},)"
                     R"("weight_map":{"a":"m-00001-of-00002.safetensors",)"
                     R"("b":"m-00002-of-00002.safetensors"}})");
  add_arrays(seeds);
  for (const auto& attacks : {safetensors_attacks(), gguf_attacks(), npy_attacks(), directory_attacks()})
    seeds.add(attacks);
}
