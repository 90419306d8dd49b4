// The options of a verb, wherever their values come from: the command line, or a page's request.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace rootdk::app {

struct Option {
  enum class Is : std::uint8_t {
    kValue,             ///< --name VALUE
    kList,              ///< --name VALUE, and it may be given several times
    kFlag,              ///< --name
    kArgument,          ///< known by its place; must be there
    kOptionalArgument,  ///< known by its place
  };
  Is is;
  std::string name;  ///< "--dk"; "--corr,--correlation" where there are two; without dashes for an argument
  const char* kind;  ///< what a value is: INT
  std::string initial;
  const char* help;
  std::function<void(const std::string& text)> take;  ///< each value; of a flag, nothing. Refuses by the option's name
};

/// Where a verb declares its options. A value's initial content is its default, and shown in the help.
class OptionList {
 public:
  virtual ~OptionList() = default;
  virtual void add(Option option) = 0;

  void option(const char* name, std::string& value, const char* help);
  void option(const char* name, std::int64_t& value, const char* help);
  void option(const char* name, std::optional<std::int64_t>& value, const char* help);  ///< absent until it is given
  void option(const char* name, std::uint64_t& value, const char* help);
  void option(const char* name, int& value, const char* help);
  void option(const char* name, double& value, const char* help);
  void option(const char* name, std::vector<std::string>& values, const char* help);  ///< may be given several times
  void flag(const char* name, bool& value, const char* help);
  void argument(const char* name, std::string& value, const char* help);  ///< by its place; must be there
  void optional_argument(const char* name, std::string& value, const char* help);
};

/// A subcommand.
struct Verb {
  std::string name, summary, examples;
  std::function<void(OptionList& options)> declare;
  std::function<int()> run;  ///< after the options have their values; returns the exit status
};

}  // namespace rootdk::app
