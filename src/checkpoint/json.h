// JSON from files that are not trusted: walked event by event, nothing kept. Refuses what is not UTF-8, nesting beyond
// kMaxJsonDepth and keys that come twice in one object; every event says at which byte of the file it stands.
#pragma once

#include <cstdint>
#include <string>
#include <variant>

#include "checkpoint/source.h"

namespace rootdk::checkpoint {

inline constexpr std::size_t kMaxJsonDepth = 32;

/// Whole numbers are uint64 where they fit, int64 where they are negative, double otherwise.
using JsonScalar = std::variant<std::nullptr_t, bool, std::uint64_t, std::int64_t, double, std::string>;

/// "null", "3", "\"text\""
std::string show(const JsonScalar& value);

class JsonVisitor {
 public:
  virtual ~JsonVisitor() = default;
  virtual void begin_object(std::uint64_t at) = 0;
  virtual void key(std::uint64_t at, std::string key) = 0;
  virtual void end_object(std::uint64_t at) = 0;
  virtual void begin_array(std::uint64_t at) = 0;
  virtual void end_array(std::uint64_t at) = 0;
  virtual void scalar(std::uint64_t at, JsonScalar value) = 0;
};

/// `what` this is: "the header".
void walk_json(const Source& source, std::uint64_t begin, std::uint64_t length, const char* what, JsonVisitor& visitor);

}  // namespace rootdk::checkpoint
