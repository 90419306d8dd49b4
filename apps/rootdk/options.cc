// From an option's text to its value, one overload per type; whoever holds the text decides where it comes from.
#include "options.h"

#include <fmt/format.h>

#include <utility>

#include "base/read_number.h"
#include "base/refuse.h"

namespace rootdk::app {

namespace {

// Numbers are read here, so that what is wrong with one is said as everywhere else.
template <class T>
T read(const std::string& name, const std::string& text, const char* wanted) {
  const auto value = base::read_number<T>(text);
  if (!value) base::refuse("{}: \"{}\" is not {}", name.substr(0, name.find(',')), text, wanted);
  return *value;
}

template <class T>
Option number(const char* name, T& value, const char* kind, const char* wanted, const char* help) {
  const auto take = [&value, name, wanted](const std::string& text) { value = read<T>(name, text, wanted); };
  return {Option::Is::kValue, name, kind, fmt::format("{}", value), help, take};
}

Option text(Option::Is is, const char* name, std::string& value, const char* help) {
  return {is, name, "TEXT", value, help, [&value](const std::string& given) { value = given; }};
}

}  // namespace

void OptionList::option(const char* name, std::string& value, const char* help) {
  add(text(Option::Is::kValue, name, value, help));
}
void OptionList::option(const char* name, std::int64_t& value, const char* help) {
  add(number(name, value, "INT", "a whole number", help));
}
void OptionList::option(const char* name, std::optional<std::int64_t>& value, const char* help) {
  const auto take = [&value, name](const std::string& text) {
    value = read<std::int64_t>(name, text, "a whole number");
  };
  add({Option::Is::kValue, name, "INT", "", help, take});
}
void OptionList::option(const char* name, std::uint64_t& value, const char* help) {
  add(number(name, value, "INT", "a whole number of at least 0", help));
}
void OptionList::option(const char* name, int& value, const char* help) {
  add(number(name, value, "INT", "a whole number", help));
}
void OptionList::option(const char* name, double& value, const char* help) {
  add(number(name, value, "NUMBER", "a number", help));
}
void OptionList::option(const char* name, std::vector<std::string>& values, const char* help) {
  add({Option::Is::kList, name, "TEXT", "", help, [&values](const std::string& given) { values.push_back(given); }});
}
void OptionList::flag(const char* name, bool& value, const char* help) {
  add({Option::Is::kFlag, name, "", "", help, [&value](const std::string&) { value = true; }});
}
void OptionList::argument(const char* name, std::string& value, const char* help) {
  add(text(Option::Is::kArgument, name, value, help));
}
void OptionList::optional_argument(const char* name, std::string& value, const char* help) {
  add(text(Option::Is::kOptionalArgument, name, value, help));
}

}  // namespace rootdk::app
