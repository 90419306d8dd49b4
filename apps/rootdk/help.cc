// CLI11 lays help out without regard to a terminal; this takes its place.
#include "help.h"

#include <CLI/CLI.hpp>

#include <algorithm>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>

namespace rootdk::app {

namespace {

constexpr std::size_t kColumn = 30, kVerbColumn = 14;  // where descriptions begin
constexpr const char* kIndent = "  ";

/// A line like "  rootdk rules      what it does": a command, spaces and, perhaps, words. Where it is too wide the
/// words go below, and so does the end of a long command, behind a backslash: a shell still takes it.
std::string example(std::string_view line, std::size_t width) {
  if (report::display_width(line) <= width) return std::string(line) + "\n";
  line.remove_prefix(std::min(line.find_first_not_of(' '), line.size()));
  const std::size_t end = std::min(line.find("  "), line.size());
  const std::string_view command = line.substr(0, end);
  std::string_view words = line.substr(end);
  words.remove_prefix(std::min(words.find_first_not_of(' '), words.size()));

  constexpr std::string_view kGoesOn = " \\";
  std::string out = report::wrap(command, "    ", width - kGoesOn.size()).substr(2);
  for (std::size_t at = out.find('\n'); at + 1 < out.size(); at = out.find('\n', at + kGoesOn.size() + 1))
    out.insert(at, kGoesOn);
  return out + (words.empty() ? "" : report::wrap(words, "      ", width));
}

class HelpFormatter final : public CLI::Formatter {
 public:
  explicit HelpFormatter(const report::Layout& layout) : layout_(layout) {}

  std::string make_description(const CLI::App* app) const override { return layout_.wrap(app->get_description()); }
  std::string make_usage(const CLI::App* app, std::string name) const override {
    std::string line = Formatter::make_usage(app, std::move(name));
    line.erase(line.find_last_not_of('\n') + 1);
    return layout_.wrap(line);
  }
  std::string make_option(const CLI::Option* option, bool by_place) const override {
    return entry(make_option_name(option, by_place) + make_option_opts(option), kColumn, make_option_desc(option));
  }
  std::string make_subcommand(const CLI::App* verb) const override {
    return entry(verb->get_display_name(true), kVerbColumn, verb->get_description());
  }
  std::string make_footer(const CLI::App* app) const override {
    std::string out;
    std::istringstream lines(app->get_footer());
    for (std::string line; std::getline(lines, line);)
      out += line.starts_with(kIndent) ? example(line, layout_.prose) : layout_.wrap(line);
    return out;
  }

 private:
  std::string entry(const std::string& name, std::size_t column, const std::string& text) const {
    std::string label = layout_.wrap(name, kIndent);
    label.pop_back();
    if (label.find('\n') != label.npos) return label + "\n" + layout_.hanging("", column, text);
    return layout_.hanging(label, column, text);
  }

  report::Layout layout_;
};

}  // namespace

std::shared_ptr<CLI::FormatterBase> help_formatter(const report::Layout& layout) {
  return std::make_shared<HelpFormatter>(layout);
}

}  // namespace rootdk::app
