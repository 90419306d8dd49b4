// CLI11's side of it: verbs become subcommands, and its complaints one line with "did you mean".
#include "command_line.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>

#include <algorithm>
#include <cstdio>
#include <exception>
#include <new>
#include <sstream>

#include "base/nearest.h"
#include "base/visible.h"
#include "help.h"
#include "memory.h"
#include "output.h"
#include "progress.h"
#include "rootdk/error.h"
#include "rootdk/version.h"
#include "terminal.h"

namespace rootdk::app {

namespace {

constexpr int kBadInput = 2;

class CommandOptions final : public OptionList {
 public:
  explicit CommandOptions(CLI::App& parser) : parser_(parser) {}

  void add(Option option) override {
    if (option.is == Option::Is::kFlag) {
      parser_.add_flag_callback(
          option.name, [take = option.take] { take(""); }, option.help);
      return;
    }
    const auto read = [take = option.take](const std::vector<std::string>& texts) {
      try {
        for (const std::string& text : texts) take(text);
      } catch (const Error& error) {
        throw CLI::ValidationError(error.what());
      }
    };
    CLI::Option* const added = parser_.add_option_function<std::vector<std::string>>(option.name, read, option.help);
    added->type_name(option.kind)->default_str(option.initial)->expected(1)->allow_extra_args(false);
    if (option.is == Option::Is::kList) added->take_all();
    if (option.is == Option::Is::kArgument) added->required();
  }

 private:
  CLI::App& parser_;
};

int complain(const std::string& who, std::string what) {
  std::replace(what.begin(), what.end(), '\n', ' ');
  fmt::print(stderr, "{}: {}\n", who, base::visible(what));
  return kBadInput;
}

// Of what was given and nobody took: the first option, else the first word.
std::string first_unknown(const CLI::App& root) {
  const std::vector<std::string> left = root.remaining(true);
  const auto option =
      std::find_if(left.begin(), left.end(), [](const std::string& word) { return word.starts_with('-'); });
  return option != left.end() ? *option : left.empty() ? "" : left.front();
}

// "--seed", "--threads", …
std::vector<std::string> options_of(const CLI::App& parser) {
  std::vector<std::string> out;
  for (const CLI::Option* option : parser.get_options())
    for (const std::string& name : option->get_lnames()) out.push_back("--" + name);
  return out;
}

std::string about_verb(const CLI::App& root, const std::vector<Verb>& verbs, const std::string& word) {
  std::vector<std::string> known = options_of(root);
  for (const Verb& verb : verbs) known.push_back(verb.name);
  return fmt::format("unknown verb: {}{}", word, base::did_you_mean(word, known, "; try rootdk --help"));
}

// An option that was given, or a word where none is expected.
std::string about_word(const CLI::App& parser, const std::string& who, const std::string& word) {
  const std::string help = fmt::format("; try {} --help", who);
  if (!word.starts_with('-')) return fmt::format("'{}' is not expected{}", word, help);
  const std::vector<std::string> known = options_of(parser);
  const std::string name = word.substr(0, word.find('='));
  if (std::find(known.begin(), known.end(), name) != known.end())
    return fmt::format("{} goes behind the verb: {} {}", name, who, word);
  return fmt::format("unknown option: {}{}", name, base::did_you_mean(name, known, help));
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
    if (chosen.empty() && argc > 1 && argv[1][0] != '-') return complain(who, about_verb(root, verbs, argv[1]));
    if (!chosen.empty()) who += " " + chosen.front()->get_name();
    if (const std::string unknown = first_unknown(root); !unknown.empty())
      return complain(who, about_word(chosen.empty() ? root : *chosen.front(), who, unknown));
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

int run_command(const std::vector<Verb>& verbs, int argc, char** argv) {
  std::string who = "rootdk";
  share_one_arena();
  try {
    CLI::App root("Scaled dot-product attention that can be seen into, and why it is scaled by 1/√d_k", "rootdk");
    root.formatter(help_formatter(output_layout()));
    root.set_version_flag("--version", "rootdk " ROOTDK_VERSION);
    root.require_subcommand(0, 1);
    root.footer("rootdk VERB --help has its options and examples. Start with: rootdk tour");
    std::vector<CLI::App*> parsers;
    for (const Verb& verb : verbs) {
      CLI::App* parser = root.add_subcommand(verb.name, verb.summary);
      parser->footer("Examples:\n" + verb.examples);
      CommandOptions options(*parser);
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
