// A visitor that takes weight_map and passes over the rest; shards are names, never paths.
#include "checkpoint/index.h"

#include <utility>

#include "checkpoint/json.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/text.h"

namespace rootdk::checkpoint {

namespace {

constexpr std::string_view kMap = "weight_map";

class IndexVisitor final : public JsonVisitor {
 public:
  explicit IndexVisitor(const Source& source) : source_(source) {}

  void begin_object(std::uint64_t at) override {
    if (in_map()) unwanted(at, "an object");
    ++depth_;
    if (in_map()) has_map_ = true;
  }
  void begin_array(std::uint64_t at) override {
    check_place(at, "a list");
    ++depth_;
  }
  void end_object(std::uint64_t) override { --depth_; }
  void end_array(std::uint64_t) override { --depth_; }
  void key(std::uint64_t at, std::string key) override {
    if (depth_ == 1) section_ = std::move(key);
    else if (in_map()) {
      tensor_ = std::move(key);
      at_ = at;
    }
  }
  void scalar(std::uint64_t at, JsonScalar value) override {
    auto* text = std::get_if<std::string>(&value);
    if (!in_map() || text == nullptr) return check_place(at, show(value));
    if (!is_name(*text) || text->find_first_of("/\\") != std::string::npos || *text == "." || *text == "..")
      source_.refuse_at(at, "tensor {} is said to be in {}, but the name of a file in the same directory is wanted",
                        in_quotes(tensor_), in_quotes(*text));
    entries.push_back({std::move(tensor_), std::move(*text), at_});
  }

  void finish() const {
    if (!has_map_) source_.refuse_at(0, "the index has no {}", kMap);
  }

  std::vector<IndexEntry> entries;

 private:
  bool in_map() const { return depth_ == 2 && section_ == kMap; }
  [[noreturn]] void unwanted(std::uint64_t at, std::string_view came) const {
    source_.refuse_at(at, "tensor {} is said to be in {}, but a file's name is wanted", in_quotes(tensor_), came);
  }
  void check_place(std::uint64_t at, std::string_view came) const {
    if (depth_ == 0) source_.refuse_at(at, "the index is {}, but an object is wanted", came);
    if (depth_ == 1 && section_ == kMap) source_.refuse_at(at, "{} is {}, but an object is wanted", kMap, came);
    if (in_map()) unwanted(at, came);
  }

  const Source& source_;
  int depth_ = 0;
  bool has_map_ = false;
  std::string section_, tensor_;
  std::uint64_t at_ = 0;
};

}  // namespace

std::vector<IndexEntry> read_index(const Source& source) {
  if (source.size() > kMaxHeaderBytes)
    source.refuse_at(kMaxHeaderBytes, "the index has {} bytes, but at most {} is taken", source.size(),
                     kMaxHeaderBytes);
  IndexVisitor visitor(source);
  walk_json(source, 0, source.size(), "the index", visitor);
  visitor.finish();
  return std::move(visitor.entries);
}

}  // namespace rootdk::checkpoint
