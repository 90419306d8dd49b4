// Directories that lie: indices that name other places, links that lead out, shards that are missing.
#include <sys/stat.h>

#include "attacks/attack.h"
#include "support/gguf_writer.h"
#include "support/safetensors_writer.h"

namespace rootdk::test {

namespace {

namespace fs = std::filesystem;

constexpr const char* kIndex = "model.safetensors.index.json";

const std::string& good() {
  static const std::string bytes = safetensors(R"({"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})", "1234");
  return bytes;
}

// A directory with this index beside a file w.safetensors that has "w".
Attack index(std::string name, std::string_view text, std::string_view message) {
  return {std::move(name), "", std::string("HERE/") + kIndex + ": " + std::string(message),
          [text = std::string(text)](const fs::path& here) {
            write_file(here / "w.safetensors", good());
            write_file(here / kIndex, text);
          }};
}

// "w" is said to be in this file.
Attack shard(std::string name, std::string_view file, std::string_view shown) {
  return index(std::move(name), R"({"weight_map":{"w":")" + std::string(file) + R"("}})",
               "byte 19: tensor \"w\" is said to be in \"" + std::string(shown) +
                   "\", but the name of a file in the same directory is wanted");
}

// The index names link.safetensors, which this makes.
Attack link(std::string name, std::string message, std::function<void(const fs::path&)> make) {
  return {std::move(name), "", std::move(message), [make = std::move(make)](const fs::path& here) {
            write_file(here / kIndex, R"({"weight_map":{"w":"link.safetensors"}})");
            make(here / "link.safetensors");
          }};
}

}  // namespace

std::vector<Attack> directory_attacks() {
  return {
      shard("a file above", "../w.safetensors", "../w.safetensors"),
      shard("an absolute path", "/etc/passwd", "/etc/passwd"),
      shard("a way out and in again", "x/../../w.safetensors", "x/../../w.safetensors"),
      shard("a folder below", "x/w.safetensors", "x/w.safetensors"),
      shard("a path of Windows", "..\\\\w.safetensors", "..\\\\w.safetensors"),
      shard("the directory above", "..", ".."),
      shard("the directory itself", ".", "."),
      shard("no name", "", ""),
      shard("a name with a NUL", "w.safetensors\\u0000.txt", "w.safetensors\\x00.txt"),
      shard("a name with an escape", "\\u001b[2J", "\\x1b[2J"),
      index("not JSON", "weight_map", "byte 0: the index is not JSON here"),
      index("an empty index", "", "byte 0: the index is not JSON here"),
      index("a list", "[]", "byte 0: the index is a list, but an object is wanted"),
      index("no map", R"({"metadata":{"total_size":4}})", "byte 0: the index has no weight_map"),
      index("a list for a map", R"({"weight_map":[]})", "byte 14: weight_map is a list, but an object is wanted"),
      index("a number for a file", R"({"weight_map":{"w":1}})",
            "byte 19: tensor \"w\" is said to be in 1, but a file's name is wanted"),
      index("an object for a file", R"({"weight_map":{"w":{}}})",
            "byte 19: tensor \"w\" is said to be in an object, but a file's name is wanted"),
      index("a tensor twice", R"({"weight_map":{"w":"w.safetensors","w":"v.safetensors"}})",
            "byte 35: the index has the key \"w\" twice"),
      index("two maps", R"({"weight_map":{},"weight_map":{}})", "byte 17: the index has the key \"weight_map\" twice"),
      index("deep nesting", "{\"metadata\":" + std::string(100000, '['), "byte 43: the index is nested deeper than 32"),
      index("a tensor that is not there", R"({"weight_map":{"v":"w.safetensors"}})",
            "byte 15: tensor \"v\" is said to be in \"w.safetensors\", which does not have it"),
      {"a file that is not there", "", "HERE/v.safetensors: cannot be opened: No such file or directory",
       [](const fs::path& here) { write_file(here / kIndex, R"({"weight_map":{"w":"v.safetensors"}})"); }},
      {"a shard that is cut off", "",
       "HERE/w.safetensors: byte 9: tensor \"w\": data_offsets are 0 and 4, but the data have 1 bytes",
       [](const fs::path& here) {
         write_file(here / kIndex, R"({"weight_map":{"w":"w.safetensors"}})");
         write_file(here / "w.safetensors", good().substr(0, good().size() - 3));
       }},
      {"a shard that is an index", "",
       "HERE/model.safetensors.index.json: byte 0: the header's length is 8388068008349082235, but at most 100000000 "
       "is taken",
       [](const fs::path& here) {
         write_file(here / kIndex, R"({"weight_map":{"w":"model.safetensors.index.json"}})");
       }},
      link("a link to a file elsewhere",
           "HERE/link.safetensors: a symbolic link that leads out of its directory, to /dev/null",
           [](const fs::path& path) { fs::create_symlink("/dev/null", path); }),
      link("a link to itself", "HERE/link.safetensors: cannot be opened: Too many levels of symbolic links",
           [](const fs::path& path) { fs::create_symlink("link.safetensors", path); }),
      link("a link to nothing", "HERE/link.safetensors: cannot be opened: No such file or directory",
           [](const fs::path& path) { fs::create_symlink("nothing", path); }),
      link("a folder", "HERE/link.safetensors: not a regular file",
           [](const fs::path& path) { fs::create_directory(path); }),
      link("a pipe without a writer", "HERE/link.safetensors: not a regular file",
           [](const fs::path& path) {
             if (mkfifo(path.c_str(), 0600) != 0) throw std::runtime_error("mkfifo");
           }),
      {"a configuration elsewhere", "config",
       "HERE/config.json: a symbolic link that leads out of its directory, to /dev/null",
       [](const fs::path& here) {
         write_file(here / "model.safetensors", good());
         fs::create_symlink("/dev/null", here / "config.json");
       }},
      {"a shard of GGUF that is cut off", "",
       "HERE/m-00002-of-00002.gguf: byte 24: tensor \"v\": 4 bytes at offset 0, but the data have 2 bytes",
       [](const fs::path& here) {
         const std::string one = GgufWriter().tensor({"w", {1}, kGgmlF32, "1234"}).bytes();
         const std::string two = GgufWriter().tensor({"v", {1}, kGgmlF32, "1234"}).bytes();
         write_file(here / "m-00001-of-00002.gguf", one);
         write_file(here / "m-00002-of-00002.gguf", two.substr(0, two.size() - 2));
       }},
      {"a name that paints the terminal", "\x1b[2J.gguf",
       "HERE/\\x1b[2J.gguf: byte 0: a GGUF file begins with \"GGUF\"",
       [](const fs::path& here) { write_file(here / "\x1b[2J.gguf", "nothing"); }},
  };
}

}  // namespace rootdk::test
