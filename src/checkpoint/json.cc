// nlohmann's SAX parser over an iterator that counts bytes, with depth, keys and UTF-8 checked on the way.
#include "checkpoint/json.h"

#include <cstddef>
#include <iterator>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>
#include <vector>

#include "checkpoint/text.h"

namespace rootdk::checkpoint {

namespace {

// Gives the parser its characters and remembers how many it took: its events do not say where they are.
struct CountingIterator {
  using difference_type = std::ptrdiff_t;
  using value_type = char;
  using pointer = const char*;
  using reference = const char&;
  using iterator_category = std::input_iterator_tag;

  const char* place = nullptr;
  const char** taken = nullptr;

  reference operator*() const { return *place; }
  CountingIterator& operator++() {
    *taken = ++place;
    return *this;
  }
  CountingIterator operator++(int) {
    CountingIterator before = *this;
    ++*this;
    return before;
  }
  bool operator==(const CountingIterator& other) const { return place == other.place; }
};

bool belongs_to_number(char c) {
  return (c >= '0' && c <= '9') || c == '-' || c == '+' || c == '.' || c == 'e' || c == 'E';
}

// nlohmann's SAX interface, turned into a JsonVisitor's.
class Events {
 public:
  Events(const Source& source, std::uint64_t begin, const char* what, const char* first, const char* const& taken,
         JsonVisitor& visitor)
      : source_(source), begin_(begin), what_(what), first_(first), taken_(taken), visitor_(visitor) {}

  bool null() { return scalar(word(4), nullptr); }
  bool boolean(bool value) { return scalar(word(value ? 4 : 5), value); }
  bool number_unsigned(std::uint64_t value) { return scalar(number(), value); }
  bool number_integer(std::int64_t value) { return scalar(number(), value); }
  bool number_float(double value, const std::string&) { return scalar(number(), value); }
  bool string(std::string& value) { return scalar(opening_quote(), std::move(value)); }
  template <class Binary>
  bool binary(Binary&) {
    return false;
  }  // not in JSON text

  bool start_object(std::size_t) {
    deeper();
    keys_.emplace_back();
    visitor_.begin_object(word(1));
    return true;
  }
  bool key(std::string& name) {
    if (!keys_.back().insert(name).second)
      source_.refuse_at(opening_quote(), "{} has the key {} twice", what_, in_quotes(name));
    visitor_.key(opening_quote(), std::move(name));
    return true;
  }
  bool end_object() {
    --depth_;
    keys_.pop_back();
    visitor_.end_object(word(1));
    return true;
  }
  bool start_array(std::size_t) {
    deeper();
    visitor_.begin_array(word(1));
    return true;
  }
  bool end_array() {
    --depth_;
    visitor_.end_array(word(1));
    return true;
  }
  template <class Exception>
  bool parse_error(std::size_t position, const std::string&, const Exception&) {
    source_.refuse_at(begin_ + (position > 0 ? position - 1 : 0), "{} is not JSON here", what_);
  }

 private:
  bool scalar(std::uint64_t at, JsonScalar value) {
    visitor_.scalar(at, std::move(value));
    return true;
  }
  void deeper() {
    if (++depth_ > kMaxJsonDepth) source_.refuse_at(word(1), "{} is nested deeper than {}", what_, kMaxJsonDepth);
  }

  // Where the token began whose last character the parser took last.
  std::uint64_t at(const char* place) const { return begin_ + static_cast<std::uint64_t>(place - first_); }
  std::uint64_t word(std::ptrdiff_t length) const { return at(taken_ - length); }
  // A number ends where the next character does not belong to it, which has been taken, too.
  std::uint64_t number() const {
    const char* place = taken_;
    if (place > first_ && !belongs_to_number(place[-1])) --place;
    while (place > first_ && belongs_to_number(place[-1])) --place;
    return at(place);
  }
  // A quote inside a string has an odd number of backslashes before it.
  std::uint64_t opening_quote() const {
    const char* place = taken_ - 1;
    for (bool inside = true; inside && place > first_;) {
      --place;
      if (*place != '"') continue;
      const char* slash = place;
      while (slash > first_ && slash[-1] == '\\') --slash;
      inside = (place - slash) % 2 != 0;
    }
    return at(place);
  }

  const Source& source_;
  const std::uint64_t begin_;
  const char* const what_;
  const char* const first_;
  const char* const& taken_;
  JsonVisitor& visitor_;
  std::size_t depth_ = 0;
  std::vector<std::set<std::string>> keys_;  // of every object that is open
};

}  // namespace

std::string show(const JsonScalar& value) {
  struct Show {
    std::string operator()(std::nullptr_t) const { return "null"; }
    std::string operator()(bool b) const { return b ? "true" : "false"; }
    std::string operator()(std::uint64_t n) const { return fmt::format("{}", n); }
    std::string operator()(std::int64_t n) const { return fmt::format("{}", n); }
    std::string operator()(double x) const { return fmt::format("{}", x); }
    std::string operator()(const std::string& s) const { return in_quotes(s); }
  };
  return std::visit(Show(), value);
}

void walk_json(const Source& source, std::uint64_t begin, std::uint64_t length, const char* what,
               JsonVisitor& visitor) {
  const std::string_view text = source.text(begin, length);
  if (const std::size_t wrong = first_not_utf8(text); wrong != std::string_view::npos)
    source.refuse_at(begin + wrong, "{} is not UTF-8 here", what);
  // JSON has no NUL anywhere, but the parser would take it for the end, and what follows for nothing.
  if (const std::size_t nul = text.find('\0'); nul != std::string_view::npos)
    source.refuse_at(begin + nul, "{} is not JSON here", what);
  const char* taken = text.data();
  Events events(source, begin, what, text.data(), taken, visitor);
  nlohmann::json::sax_parse(CountingIterator{text.data(), &taken}, CountingIterator{text.data() + text.size(), &taken},
                            &events);
}

}  // namespace rootdk::checkpoint
