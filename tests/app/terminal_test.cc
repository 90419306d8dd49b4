// The command in a terminal: text as wide as that is, and a line on what runs; and in a pipe, where there is neither.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "support/process.h"

namespace rootdk::test {
namespace {

using Json = nlohmann::json;
using Words = std::vector<std::string>;

Words command(Words words) {
  words.insert(words.begin(), ROOTDK_COMMAND);
  return words;
}

/// With COLUMNS set so, or not at all if empty.
Finished rootdk(const Words& words, const std::string& columns) {
  Words all = {"env", columns.empty() ? "--unset=COLUMNS" : "COLUMNS=" + columns, "OMP_NUM_THREADS=1"};
  for (const std::string& word : command(words)) all.push_back(word);
  return run(all);
}

/// A terminal of that many columns; its program's end is `program`.
class Terminal {
 public:
  explicit Terminal(unsigned short columns) : terminal_(posix_openpt(O_RDWR | O_NOCTTY)) {
    EXPECT_GE(terminal_, 0);
    EXPECT_EQ(grantpt(terminal_), 0);
    EXPECT_EQ(unlockpt(terminal_), 0);
    program = open(ptsname(terminal_), O_RDWR | O_NOCTTY);
    EXPECT_GE(program, 0);
    fcntl(terminal_, F_SETFL, O_NONBLOCK);
    resize(columns);
  }
  ~Terminal() {
    close(program);
    close(terminal_);
  }
  Terminal(const Terminal&) = delete;
  Terminal& operator=(const Terminal&) = delete;

  void resize(unsigned short columns) {
    winsize size = {};
    size.ws_row = 24, size.ws_col = columns;
    EXPECT_EQ(ioctl(program, TIOCSWINSZ, &size), 0);
  }

  /// All that was written so far.
  const std::string& seen() {
    char part[4096];
    for (ssize_t n; (n = read(terminal_, part, sizeof part)) > 0;) seen_.append(part, static_cast<std::size_t>(n));
    return seen_;
  }

  bool shows(const std::string& what) {
    for (int i = 0; i < 6000; ++i) {
      if (seen().find(what) != std::string::npos) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    return false;
  }

  int program = -1;

 private:
  int terminal_;
  std::string seen_;
};

std::vector<std::string> split(const std::string& text, char at) {
  std::vector<std::string> out;
  std::istringstream parts(text);
  for (std::string part; std::getline(parts, part, at);) out.push_back(part);
  return out;
}

/// In characters; there is nothing wide in what is tested here.
std::size_t width_of(const std::string& line) {
  return static_cast<std::size_t>(std::count_if(line.begin(), line.end(), [](char c) { return (c & 0xC0) != 0x80; }));
}

bool is_one_word(const std::string& line) {
  const std::size_t first = line.find_first_not_of(' ');
  return first != line.npos && line.find(' ', first) == line.npos;
}

void expect_fits(const std::string& text, std::size_t columns) {
  for (const std::string& line : split(text, '\n'))
    EXPECT_TRUE(width_of(line) <= columns || is_one_word(line)) << columns << ": " << line << "\n" << text;
}

const std::vector<Words> kQuick = {
    {"explain", "--scores", "14,10,12", "--dk", "64"},
    {"variance", "--pairs", "5000"},
    {"phase", "--queries", "2", "--batches", "2", "--dk", "4", "--rules", "none"},
    {"gradient", "--queries", "4", "--batches", "2", "--keys", "16"},
    {"precision", "--queries", "4", "--keys", "16"},
    {"init", "--widths", "16", "--dk", "4", "--tokens", "4", "--batches", "2"},
    {"train", "--rules", "none,sqrt_dk", "--dk", "4", "--steps", "2", "--batch", "1", "--seeds", "1", "--lr", "0.01"},
    {"bench", "--rounds", "1"},
    {"plan", "--ranks", "16", "--tokens", "64k"},
    {"rules"},
    {"doctor"}};

TEST(Terminal, TextIsAsWideAsIt) {
  for (const Words& words : kQuick)
    for (const std::size_t columns : {40u, 60u, 97u, 200u}) {
      const Finished done = rootdk(words, std::to_string(columns));
      EXPECT_EQ(done.status, 0) << done.err;
      expect_fits(done.out, columns);
    }
  const auto widest = [](const std::string& text) {
    std::size_t out = 0;
    for (const std::string& line : split(text, '\n')) out = std::max(out, width_of(line));
    return out;
  };
  EXPECT_GT(widest(rootdk({"variance", "--pairs", "5000"}, "200").out), 90u) << "room is used";
  EXPECT_LE(widest(rootdk({"variance", "--pairs", "5000"}, "200").out), 100u) << "but sentences stay readable";
}

TEST(Terminal, SoIsTheTour) {
  for (const std::size_t columns : {40u, 120u}) {
    const TemporaryDirectory folder;
    const std::string out = (folder / "a folder with a long name, and spaces in it").string();
    const Finished done = rootdk({"tour", "--quick", "--out", out}, std::to_string(columns));
    EXPECT_EQ(done.status, 0) << done.err;
    EXPECT_NE(done.out.find(out + "/results.json."), done.out.npos) << "names of files stay whole";
    expect_fits(done.out.substr(0, done.out.find("The report is")), columns);
  }
}

TEST(Terminal, SoIsTheHelp) {
  Words verbs = {""};
  for (const std::string& line : split(rootdk({}, "80").out, '\n'))
    if (line.starts_with("  ") && line[2] >= 'a' && line[2] <= 'z')
      verbs.push_back(line.substr(2, line.find(' ', 2) - 2));
  ASSERT_EQ(verbs.size(), 17u);
  for (const std::string& verb : verbs)
    for (const std::size_t columns : {40u, 60u, 80u, 200u}) {
      const Finished done = rootdk(verb.empty() ? Words{"--help"} : Words{verb, "--help"}, std::to_string(columns));
      EXPECT_EQ(done.status, 0);
      expect_fits(done.out, columns);
    }
  // A command that was broken can still be taken to a shell.
  const std::string narrow = rootdk({"audit", "--help"}, "40").out;
  EXPECT_NE(narrow.find("rootdk audit model.safetensors \\\n    --heads 12 --norm layer\n"), narrow.npos) << narrow;
}

// Pipes and files get what does not depend on a terminal: sentences of 80 columns, and rows that are lines.
TEST(Terminal, APipeHasNoWidth) {
  for (const Words& words : kQuick) {
    if (words.front() == "bench") continue;  // it never says the same twice
    const auto said = [&](const std::string& columns) {
      std::vector<std::string> lines = split(rootdk(words, columns).out, '\n');
      std::erase_if(lines,
                    [](const std::string& line) { return line.starts_with("memory "); });  // how much is free changes
      return lines;
    };
    EXPECT_EQ(said(""), said("80"));
  }
  for (const char* nonsense : {"0", "-5", "wide", "1e9", "99999999999999999999", " 60"})
    EXPECT_EQ(rootdk({"rules"}, "").out, rootdk({"rules"}, nonsense).out) << nonsense;
  const Words wide = {"phase",
                      "--queries",
                      "2",
                      "--batches",
                      "2",
                      "--dk",
                      "4",
                      "--rules",
                      "none",
                      "--keys",
                      "4,8,16,32,64,128,256,512,1024"};
  EXPECT_NE(rootdk(wide, "").out.find("n = 4 "), std::string::npos);
  for (const std::string& line : split(rootdk(wide, "").out, '\n'))
    EXPECT_EQ(line.find("n = 4 ") == line.npos, line.find("n = 1024") == line.npos) << "a row stays a line";
}

TEST(Terminal, IsAskedHowWideItIs) {
  for (const unsigned short columns : {47, 130}) {
    Terminal terminal(columns);
    Process process({"env", "--unset=COLUMNS", ROOTDK_COMMAND, "variance", "--pairs", "5000"}, -1, terminal.program);
    EXPECT_EQ(process.wait().status, 0);
    std::string text = terminal.seen();
    text.erase(std::remove(text.begin(), text.end(), '\r'), text.end());
    expect_fits(text, columns);
    EXPECT_EQ(text, rootdk({"variance", "--pairs", "5000"}, std::to_string(columns)).out);
  }
  Terminal silent(0);  // as over some serial lines
  Process process({"env", "--unset=COLUMNS", ROOTDK_COMMAND, "rules"}, -1, silent.program);
  EXPECT_EQ(process.wait().status, 0);
  expect_fits(silent.seen(), 81);
}

// Standard error is a terminal, standard output is not: the line is seen there, and not here.
TEST(Progress, IsForTerminals) {
  Terminal terminal(100);
  Process variance(command({"variance", "--dk", "1", "--pairs", "100000000000", "--json"}), terminal.program);
  EXPECT_TRUE(terminal.shows("░")) << terminal.seen();
  EXPECT_TRUE(terminal.shows("terms of a square")) << terminal.seen();
  variance.interrupt();
  const Finished done = variance.wait();
  EXPECT_EQ(done.status, 130);
  EXPECT_TRUE(terminal.seen().ends_with("\r\033[K")) << "and is gone in the end";
  EXPECT_EQ(done.out.find("░"), done.out.npos);
  EXPECT_EQ(Json::parse(done.out)["complete"], false);

  Process piped(command({"variance", "--dk", "1", "--pairs", "100000000000", "--json"}));
  std::this_thread::sleep_for(std::chrono::milliseconds(1500));
  piped.interrupt();
  EXPECT_EQ(piped.wait().err, "");
}

// What was drawn, line by line, without what moves the cursor.
std::vector<std::string> drawn(const std::string& seen) {
  std::vector<std::string> out;
  for (const std::string& part : split(seen, '\r')) {
    std::string line = part.starts_with("\033[") ? part.substr(3) : part;
    if (const std::size_t up = line.find("\033["); up != line.npos) line.erase(up);
    if (!line.empty()) out.push_back(line);
  }
  return out;
}

TEST(Progress, SaysWhatRunsAndHowLongItTakes) {
  for (const unsigned short columns : {40, 60, 80, 200}) {
    Terminal terminal(columns);
    Process train(command({"train", "--rules", "sqrt_dk", "--dk", "2", "--layers", "1", "--steps", "1000000", "--batch",
                           "1", "--seeds", "1", "--lr", "0.01"}),
                  terminal.program);
    EXPECT_TRUE(terminal.shows(" left  sqrt_dk")) << terminal.seen();
    if (columns >= 80) {
      EXPECT_TRUE(terminal.shows("sqrt_dk, rate 0.01, seed 2, ste")) << terminal.seen();
    }
    if (columns == 200) {
      EXPECT_TRUE(terminal.shows("/1000000")) << terminal.seen();
    }
    train.interrupt();
    EXPECT_EQ(train.wait().status, 130);
    for (const std::string& line : drawn(terminal.seen())) EXPECT_LT(width_of(line), columns) << line;
  }
}

// A line that was drawn before a terminal became narrower is broken into several there: all of them go.
TEST(Progress, FollowsTheTerminal) {
  Terminal terminal(200);
  Process train(command({"train", "--rules", "sqrt_dk", "--dk", "2", "--layers", "1", "--steps", "1000000", "--batch",
                         "1", "--seeds", "1", "--lr", "0.01"}),
                terminal.program);
  EXPECT_TRUE(terminal.shows("/1000000")) << terminal.seen();
  terminal.resize(40);
  EXPECT_TRUE(terminal.shows("A\r\033[J")) << terminal.seen();
  const std::size_t then = terminal.seen().find("\r\033[J");
  std::this_thread::sleep_for(std::chrono::milliseconds(500));
  train.interrupt();
  EXPECT_EQ(train.wait().status, 130);
  for (const std::string& line : drawn(terminal.seen().substr(then))) EXPECT_LT(width_of(line), 40u) << line;
}

}  // namespace
}  // namespace rootdk::test
