// The command line, with the parser (CLI11) kept out of sight: it takes long to compile, and verbs need little of it.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace rootdk::app {

/// Where a verb declares its options. A value's initial content is its default, and shown in the help.
class OptionList {
 public:
  explicit OptionList(void* parser) : parser_(parser) {}

  void option(const char* name, std::string& value, const char* help);
  void option(const char* name, std::int64_t& value, const char* help);
  void option(const char* name, std::uint64_t& value, const char* help);
  void option(const char* name, int& value, const char* help);
  void option(const char* name, double& value, const char* help);
  void option(const char* name, std::vector<std::string>& values, const char* help);  ///< may be given several times
  void flag(const char* name, bool& value, const char* help);
  void argument(const char* name, std::string& value, const char* help);  ///< by its place; must be there
  void optional_argument(const char* name, std::string& value, const char* help);

 private:
  void* parser_;  ///< CLI::App
};

/// A subcommand.
struct Verb {
  std::string name, summary, examples;
  std::function<void(OptionList& options)> declare;
  std::function<int()> run;  ///< after the options have their values; returns the exit status
};

/// Picks the verb, runs it, and returns the exit status: 2 with one line on standard error for anything that was wrong.
int run_command(const std::vector<Verb>& verbs, int argc, char** argv);

}  // namespace rootdk::app
