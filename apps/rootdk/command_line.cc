#include "command_line.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <exception>
#include <new>
#include <sstream>

#include "output.h"
#include "progress.h"
#include "rootdk/version.h"

namespace rootdk::app {

namespace {

constexpr int kBadInput = 2;

CLI::App& app_of(void* parser) { return *static_cast<CLI::App*>(parser); }

// Numbers are read here, so that what is wrong with one is said as everywhere else.
template <class T>
void add(void* parser, const char* name, T& value, const char* kind, const char* wanted, const char* help) {
  const auto read = [&value, name, wanted](const std::string& text) {
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc{} || end != text.data() + text.size())
      throw CLI::ValidationError(name, fmt::format("\"{}\" is not {}", text, wanted));
  };
  app_of(parser)
      .add_option_function<std::string>(name, read, help)
      ->type_name(kind)
      ->default_str(fmt::format("{}", value));
}

int complain(const std::string& who, std::string what) {
  std::replace(what.begin(), what.end(), '\n', ' ');
  fmt::print(stderr, "{}: {}\n", who, what);
  return kBadInput;
}

// Of what was given and nobody took: the first option, else the first word.
std::string first_unknown(const CLI::App& root) {
  const std::vector<std::string> left = root.remaining(true);
  const auto option =
      std::find_if(left.begin(), left.end(), [](const std::string& word) { return word.starts_with('-'); });
  return option != left.end() ? *option : left.empty() ? "" : left.front();
}

// Help and version are "errors" of the parser that end well.
int say(const CLI::App& root, const CLI::Error& request) {
  std::ostringstream out, errors;
  const int status = root.exit(request, out, errors);
  print(out.str());
  return status;
}

int parse_and_run(CLI::App& root, const std::vector<CLI::App*>& parsers, const std::vector<Verb>& verbs, int argc,
                  char** argv, std::string& who) {
  try {
    root.parse(argc, argv);
  } catch (const CLI::Success& request) {
    return say(root, request);
  } catch (const CLI::ParseError& error) {
    const std::vector<CLI::App*> chosen = root.get_subcommands();
    if (chosen.empty() && argc > 1 && argv[1][0] != '-')
      return complain(who, fmt::format("no subcommand '{}'; try rootdk --help", argv[1]));
    if (!chosen.empty()) who += " " + chosen.front()->get_name();
    if (const std::string unknown = first_unknown(root); !unknown.empty())
      return complain(who, fmt::format("'{}' is not expected; try {} --help", unknown, who));
    return complain(who, error.what());
  }
  for (std::size_t i = 0; i < verbs.size(); ++i)
    if (parsers[i]->parsed()) {
      who += " " + verbs[i].name;
      catch_interrupts();
      return verbs[i].run();
    }
  print(root.help());
  return 0;
}

}  // namespace

void OptionList::option(const char* name, std::string& value, const char* help) {
  app_of(parser_).add_option(name, value, help)->capture_default_str();
}
void OptionList::option(const char* name, std::int64_t& value, const char* help) {
  add(parser_, name, value, "INT", "a whole number", help);
}
void OptionList::option(const char* name, std::uint64_t& value, const char* help) {
  add(parser_, name, value, "INT", "a whole number of at least 0", help);
}
void OptionList::option(const char* name, int& value, const char* help) {
  add(parser_, name, value, "INT", "a whole number", help);
}
void OptionList::option(const char* name, double& value, const char* help) {
  add(parser_, name, value, "NUMBER", "a number", help);
}
void OptionList::option(const char* name, std::vector<std::string>& values, const char* help) {
  app_of(parser_).add_option(name, values, help)->expected(1)->take_all();
}
void OptionList::flag(const char* name, bool& value, const char* help) { app_of(parser_).add_flag(name, value, help); }
void OptionList::argument(const char* name, std::string& value, const char* help) {
  app_of(parser_).add_option(name, value, help)->required();
}
void OptionList::optional_argument(const char* name, std::string& value, const char* help) {
  app_of(parser_).add_option(name, value, help);
}

int run_command(const std::vector<Verb>& verbs, int argc, char** argv) {
  std::string who = "rootdk";
  try {
    CLI::App root("Scaled dot-product attention that can be seen into, and why it is scaled by 1/√d_k", "rootdk");
    root.set_version_flag("--version", "rootdk " ROOTDK_VERSION);
    root.require_subcommand(0, 1);
    root.footer("rootdk VERB --help has the options of a verb, and examples. Start with: rootdk tour");
    std::vector<CLI::App*> parsers;
    for (const Verb& verb : verbs) {
      CLI::App* parser = root.add_subcommand(verb.name, verb.summary);
      parser->footer("Examples:\n" + verb.examples);
      OptionList options(parser);
      verb.declare(options);
      parsers.push_back(parser);
    }
    return parse_and_run(root, parsers, verbs, argc, argv, who);
  } catch (const std::bad_alloc&) {
    return complain(who, "out of memory");
  } catch (const std::exception& error) {
    return complain(who, error.what());
  }
}

}  // namespace rootdk::app
