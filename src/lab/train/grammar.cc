// A context-free grammar expanded at random, and stories whose ends repeat their beginnings.
#include "rootdk/lab/train/grammar.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <span>
#include <string_view>

#include "lab/train/random.h"

namespace rootdk::lab {

namespace {

// A right-hand side is a row of words; those in capitals are symbols. Singular (S) and plural (P) are kept apart, which
// is how verbs come to agree with their nouns. The first rule of a symbol leads to no deeper nesting.
struct Rule {
  std::string_view symbol, result;
};
constexpr Rule kRules[] = {
    {"SENTENCE", "the NOUNS VERBS"},
    {"SENTENCE", "the NOUNP VERBP"},
    {"NOUNS", "ANIMALS"},
    {"NOUNS", "ANIMALS that the NOUNP SEEP"},
    {"NOUNS", "ANIMALS that the NOUNS SEES"},
    {"NOUNS", "SORT ANIMALS"},
    {"NOUNP", "ANIMALP"},
    {"NOUNP", "ANIMALP that the NOUNS SEES"},
    {"NOUNP", "ANIMALP that the NOUNP SEEP"},
    {"NOUNP", "SORT ANIMALP"},
    {"ANIMALS", "bird"},
    {"ANIMALS", "cat"},
    {"ANIMALS", "dog"},
    {"ANIMALS", "goat"},
    {"ANIMALP", "birds"},
    {"ANIMALP", "cats"},
    {"ANIMALP", "dogs"},
    {"ANIMALP", "goats"},
    {"VERBS", "sings"},
    {"VERBS", "sleeps"},
    {"VERBS", "runs to the PLACE"},
    {"VERBP", "sing"},
    {"VERBP", "sleep"},
    {"VERBP", "run to the PLACE"},
    {"SEES", "sees"},
    {"SEES", "watches"},
    {"SEEP", "see"},
    {"SEEP", "watch"},
    {"SORT", "old"},
    {"SORT", "small"},
    {"SORT", "quick"},
    {"PLACE", "barn"},
    {"PLACE", "river"},
    {"PLACE", "hill"},
};
constexpr std::string_view kNames[] = {"Anna", "Ben", "Clara", "David", "Emma", "Felix", "Greta", "Hugo"};
constexpr std::string_view kColours[] = {"red", "blue", "green", "white", "black", "yellow"};
constexpr std::string_view kThings[] = {"key", "cup", "book", "coat", "lamp", "ring"};

// Clauses inside clauses, at most.
constexpr int kDeepest = 2;

bool is_symbol(std::string_view word) { return word.front() >= 'A' && word.front() <= 'Z'; }

void expand(std::string_view symbol, int depth, Random& random, std::string& text) {
  std::array<const Rule*, 8> rules{};
  std::size_t count = 0;
  for (const Rule& rule : kRules)
    if (rule.symbol == symbol) rules[count++] = &rule;
  const bool nests = symbol.substr(0, 4) == "NOUN";
  const Rule& rule = *(nests && depth >= kDeepest ? rules[0] : random.pick(std::span(rules).first(count)));
  for (std::string_view rest = rule.result; !rest.empty();) {
    const std::size_t end = std::min(rest.find(' '), rest.size());
    const std::string_view word = rest.substr(0, end);
    rest.remove_prefix(std::min(end + 1, rest.size()));
    if (is_symbol(word)) {
      expand(word, depth + (nests ? 1 : 0), random, text);
    } else {
      text.append(word).push_back(' ');
    }
  }
}

void add_sentence(Random& random, std::string& text) {
  const std::size_t begin = text.size();
  expand("SENTENCE", 0, random, text);
  text[begin] = static_cast<char>(text[begin] - 'a' + 'A');
  text.back() = '.';
  text.push_back(' ');
}

void add_story(Random& random, std::string& text) {
  std::array<std::string_view, std::size(kNames)> names;
  std::copy(std::begin(kNames), std::end(kNames), names.begin());
  const std::size_t people = 2 + random.below(3);
  random.shuffle(names, people);
  struct Fact {
    std::string_view name, colour, thing;
  };
  std::array<Fact, 4> facts;
  for (std::size_t i = 0; i < people; ++i) {
    facts[i] = {names[i], random.pick(kColours), random.pick(kThings)};
    text.append(facts[i].name)
        .append(" has a ")
        .append(facts[i].colour)
        .append(" ")
        .append(facts[i].thing)
        .append(". ");
  }
  for (std::uint32_t i = random.below(2) + 1; i > 0; --i) add_sentence(random, text);
  random.shuffle(std::span(facts).first(people), people);
  for (std::size_t i = 0; i < people; ++i)
    text.append("So ")
        .append(facts[i].name)
        .append(" keeps the ")
        .append(facts[i].colour)
        .append(" ")
        .append(facts[i].thing)
        .append(". ");
  text.back() = '\n';
}

}  // namespace

std::string grammar_text(std::size_t characters, std::uint64_t seed) {
  Random random(seed, Purpose::kGrammar);
  std::string text;
  while (text.size() < characters) add_story(random, text);
  return text;
}

}  // namespace rootdk::lab
