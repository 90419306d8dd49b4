// The tasks: what a batch must be, and that it is a pure function of what was asked for.
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>

#include "lab/train/random.h"
#include "rootdk/lab/train/grammar.h"
#include "rootdk/lab/train/recall.h"
#include "rootdk/lab/train/text.h"
#include "rootdk/nn/cross_entropy.h"
#include "support/message.h"

namespace rootdk::lab {
namespace {

using test::message_of;

std::vector<std::int32_t> part(const std::vector<std::int32_t>& all, std::int64_t first, std::int64_t count) {
  return {all.begin() + first, all.begin() + first + count};
}

TEST(Recall, AnswersAreThoseOfThePairs) {
  EXPECT_TRUE(rc::check([] {
    RecallOptions o;
    o.keys = *rc::gen::inRange(1, 30), o.values = *rc::gen::inRange(2, 30);
    o.pairs = *rc::gen::inRange<std::int64_t>(1, o.keys + 1), o.asked = *rc::gen::inRange<std::int64_t>(1, o.pairs + 1);
    const RecallTask task(o);
    const auto sequences = *rc::gen::inRange<std::int64_t>(0, 5);
    Batch batch;
    task.draw(Task::Split::kTrain, *rc::gen::arbitrary<std::uint64_t>(), *rc::gen::inRange(0, 1000), sequences, batch);
    RC_ASSERT(batch.length == 2 * o.pairs + o.asked);
    RC_ASSERT(static_cast<std::int64_t>(batch.tokens.size()) == sequences * batch.length);
    RC_ASSERT(batch.targets.size() == batch.tokens.size());
    for (std::int64_t s = 0; s < sequences; ++s) {
      const auto tokens = part(batch.tokens, s * batch.length, batch.length),
                 targets = part(batch.targets, s * batch.length, batch.length);
      std::map<std::int32_t, std::int32_t> value_of;
      for (std::size_t p = 0; p < static_cast<std::size_t>(o.pairs); ++p) {
        const std::int32_t key = tokens[2 * p], value = tokens[2 * p + 1];
        RC_ASSERT(key >= 0 && key < o.keys && value >= o.keys && value < o.keys + o.values);
        RC_ASSERT(value_of.emplace(key, value).second);  // keys differ
        RC_ASSERT(targets[2 * p] == nn::kNoTarget && targets[2 * p + 1] == nn::kNoTarget);
      }
      std::set<std::int32_t> asked;
      for (auto i = static_cast<std::size_t>(2 * o.pairs); i < tokens.size(); ++i) {
        RC_ASSERT(asked.insert(tokens[i]).second);
        RC_ASSERT(value_of.at(tokens[i]) == targets[i]);
      }
    }
  }));
}

// Two runs of one seed see the same batches in whatever order they ask; anything else changes them.
TEST(Recall, IsAFunctionOfSeedSplitAndIndex) {
  const RecallTask task;
  const auto draw = [&](Task::Split split, std::uint64_t seed, std::uint64_t index) {
    Batch batch;
    task.draw(split, seed, index, 8, batch);
    return batch.tokens;
  };
  const auto first = draw(Task::Split::kTrain, 1, 5);
  std::set<std::vector<std::int32_t>> all = {first};
  EXPECT_TRUE(all.insert(draw(Task::Split::kHeldOut, 1, 5)).second);
  EXPECT_TRUE(all.insert(draw(Task::Split::kTrain, 2, 5)).second);
  EXPECT_TRUE(all.insert(draw(Task::Split::kTrain, 1 + (std::uint64_t{1} << 32), 5)).second);
  EXPECT_TRUE(all.insert(draw(Task::Split::kTrain, 1, 6)).second);
  EXPECT_TRUE(all.insert(draw(Task::Split::kTrain, 1, 5 + (std::uint64_t{1} << 32))).second);
  EXPECT_EQ(draw(Task::Split::kTrain, 1, 5), first);
}

// Every key in every place, every value with every key, about equally often: over 4096 sequences a count of mean m has
// standard deviation below √m, and six of these leave one chance in a billion for each of the 8·16 counts.
TEST(Recall, DrawsEvenly) {
  const RecallTask task;
  Batch batch;
  task.draw(Task::Split::kTrain, 3, 0, 4096, batch);
  std::map<std::pair<std::int64_t, std::int32_t>, double> at_place, with_key;
  for (std::int64_t s = 0; s < 4096; ++s)
    for (std::int64_t p = 0; p < 8; ++p) {
      const auto i = static_cast<std::size_t>(s * batch.length + 2 * p);
      ++at_place[{p, batch.tokens[i]}];
      ++with_key[{batch.tokens[i], batch.tokens[i + 1]}];
    }
  EXPECT_EQ(at_place.size(), 8u * 16);
  EXPECT_EQ(with_key.size(), 16u * 16);
  for (const auto& [what, count] : at_place) EXPECT_NEAR(count, 256, 6 * 16) << what.first << ' ' << what.second;
  for (const auto& [what, count] : with_key)
    EXPECT_NEAR(count, 128, 6 * std::sqrt(128)) << what.first << ' ' << what.second;
}

// Philox's own test vector through Random: counter 0, key 0 gives 6627E8D5 first, of which below() takes the upper
// part.
TEST(Random, IsPhilox) {
  Random random(0, static_cast<Purpose>(0));
  EXPECT_EQ(random.below(1 << 16), 0x6627u);
  EXPECT_EQ(random.below(1 << 16), 0xE169u);
}

TEST(Recall, RefusesWhatDoesNotFit) {
  EXPECT_EQ(message_of([] { RecallTask({.pairs = 17}); }), "pairs: 17, but 1 to 16 is wanted");
  EXPECT_EQ(message_of([] { RecallTask({.asked = 9}); }), "asked: 9, but 1 to 8 is wanted");
  EXPECT_EQ(message_of([] { RecallTask({.values = 1}); }), "values: 1, but 2 to 1048576 is wanted");
}

TEST(Text, WindowsAreOfTheirPart) {
  const std::string text = grammar_text(3000);
  TextOptions o;
  o.length = 20, o.held_out_share = 0.25;
  const TextTask task(text, o);
  const std::size_t train = text.size() - text.size() / 4;
  for (const Task::Split split : {Task::Split::kTrain, Task::Split::kHeldOut}) {
    const std::string own = split == Task::Split::kTrain ? text.substr(0, train) : text.substr(train);
    Batch batch;
    task.draw(split, 1, 2, 100, batch);
    ASSERT_EQ(batch.tokens.size(), 100u * 20);
    for (std::int64_t s = 0; s < 100; ++s) {
      const auto tokens = part(batch.tokens, s * 20, 20), targets = part(batch.targets, s * 20, 20);
      EXPECT_EQ(part(tokens, 1, 19), part(targets, 0, 19));
      std::vector<std::int32_t> window = tokens;
      window.push_back(targets.back());
      EXPECT_NE(own.find(task.text_of(window)), std::string::npos);
    }
  }
}

// The shortest parts there can be have one window each, and it is taken.
TEST(Text, AsShortAsItGets) {
  const TextTask task("abcdxyzw", {.length = 3, .held_out_share = 0.5});
  EXPECT_EQ(task.vocabulary(), 8);
  Batch batch;
  task.draw(Task::Split::kTrain, 1, 1, 2, batch);
  EXPECT_EQ(task.text_of(batch.tokens), "abcabc");
  EXPECT_EQ(task.text_of(batch.targets), "bcdbcd");
  task.draw(Task::Split::kHeldOut, 1, 1, 1, batch);
  EXPECT_EQ(task.text_of(batch.tokens), "xyz");
  EXPECT_EQ(message_of([] { TextTask("abcdxyz", {.length = 3, .held_out_share = 0.5}); }),
            "text: 7 characters, but training on 3 at a time and holding a share of 0.5 back takes more");
}

TEST(Text, DescriptionTellsTextsApart) {
  const std::string text = grammar_text(3000);
  std::string other = text;
  other[100] = other[100] == 'a' ? 'b' : 'a';
  EXPECT_NE(TextTask(text).description(), TextTask(other).description());
  EXPECT_EQ(TextTask(text).description(), TextTask(text).description());
}

TEST(Text, ReadsFiles) {
  const std::string path = (std::filesystem::temp_directory_path() / "rootdk_lab_train_tasks_test.txt").string();
  const std::string bytes("one\0two\xFF\n", 9);
  std::ofstream(path, std::ios::binary) << bytes;
  EXPECT_EQ(read_text(path), bytes);
  std::filesystem::remove(path);
  EXPECT_EQ(message_of([&] { read_text(path); }), "text: cannot open " + path);
  EXPECT_EQ(message_of([] { read_text("/"); }), "text: / is a folder, but a file is wanted");
}

std::vector<std::string> words_of(const std::string& sentence) {
  std::vector<std::string> words(1);
  for (const char c : sentence) {
    if (c == ' ') {
      words.emplace_back();
    } else {
      words.back() += c;
    }
  }
  return words;
}

// Whoever keeps something has it, and the last verb of a sentence agrees with its first noun, whatever stands between.
TEST(Grammar, KeepsItsRules) {
  const std::string text = grammar_text(50000);
  EXPECT_GE(text.size(), 50000u);
  EXPECT_EQ(text.back(), '\n');
  const std::set<std::string> one = {"bird", "cat", "dog", "goat"}, many = {"birds", "cats", "dogs", "goats"};
  std::size_t kept = 0, agreed = 0, nested = 0, begin = 0;
  for (std::size_t end = text.find('\n'); end != std::string::npos; begin = end + 1, end = text.find('\n', begin)) {
    const std::string story = text.substr(begin, end - begin);
    std::map<std::string, std::string> has;
    for (std::size_t from = 0, dot; (dot = story.find('.', from)) != std::string::npos; from = dot + 2) {
      const auto words = words_of(story.substr(from, dot - from));
      if (words[1] == "has") {
        EXPECT_TRUE(has.emplace(words[0], words[3] + ' ' + words[4]).second);
      } else if (words[0] == "So") {
        EXPECT_EQ(has.at(words[1]), words[4] + ' ' + words[5]);
        ++kept;
      } else {
        ASSERT_EQ(words[0], "The");
        const auto noun =
            std::find_if(words.begin(), words.end(), [&](const auto& w) { return one.count(w) || many.count(w); });
        ASSERT_NE(noun, words.end());
        const std::set<std::string> verbs = one.count(*noun) ? std::set<std::string>{"sings", "sleeps", "runs"}
                                                             : std::set<std::string>{"sing", "sleep", "run"};
        const std::string& verb = words[words.size() - 3] == "to" ? words[words.size() - 4] : words.back();
        EXPECT_TRUE(verbs.count(verb)) << story;
        ++agreed;
        nested += std::count(words.begin(), words.end(), "that") > 0;
      }
    }
  }
  EXPECT_GT(kept, 500u);
  EXPECT_GT(agreed, 200u);
  EXPECT_GT(nested, agreed / 4);
}

TEST(Grammar, IsAFunctionOfTheSeed) {
  const std::string text = grammar_text(2000, 7);
  EXPECT_EQ(grammar_text(2000, 7), text);
  EXPECT_EQ(grammar_text(4000, 7).substr(0, text.size()), text);
  EXPECT_NE(grammar_text(2000, 8).substr(0, 500), text.substr(0, 500));
}

}  // namespace
}  // namespace rootdk::lab
