// Every token mask is compared with what the grammar does when it advances by each token of the vocabulary.
#include <catch2/catch.hpp>
#include <filesystem>

#include "grammar/grammar_fixtures.h"
#include "support/effort.h"
#include "support/paths.h"
#include "support/test_seed.h"
#include "text/tokenizer/tokenizer.h"

using namespace millrace;
using namespace millrace::test;

namespace {

using VocabularyPtr = std::shared_ptr<const grammar::Vocabulary>;

VocabularyPtr vocabulary_of(const std::filesystem::path& folder) {
  const auto tokenizer = text::Tokenizer::load(folder.string()).value();
  std::vector<std::string> texts(tokenizer->vocab_size());
  for (TokenId token = 0; token < static_cast<TokenId>(texts.size()); ++token) {
    if (!tokenizer->is_special(token)) texts[static_cast<size_t>(token)] = tokenizer->token_bytes(token);
  }
  return std::make_shared<const grammar::Vocabulary>(texts);
}

const VocabularyPtr& books_vocabulary() {
  static const VocabularyPtr vocabulary = vocabulary_of(source_dir() / "models/books-4m");
  return vocabulary;
}

/// Draws numbers, words and choices for one random grammar.
class Dice {
 public:
  explicit Dice(std::mt19937_64& random) : random_(random) {}
  size_t below(size_t sides) { return random_() % sides; }
  bool is_one_in(size_t sides) { return below(sides) == 0; }
  template <class T, size_t kCount>
  const T& one_of(const T (&items)[kCount]) {
    return items[below(kCount)];
  }

 private:
  std::mt19937_64& random_;
};

/// Returns a vocabulary of all bytes that the grammars use, and of tokens of up to 40 bytes from a small alphabet.
VocabularyPtr long_token_vocabulary(std::mt19937_64& random) {
  Dice dice(random);
  const std::string alphabet = dice.is_one_in(2) ? "ab" : "ab1 \"";
  std::vector<std::string> texts;
  for (int byte = 0; byte < 256; ++byte) texts.emplace_back(1, static_cast<char>(byte));
  for (size_t i = 0; i < 600; ++i) {
    std::string text;
    for (size_t length = 1 + dice.below(dice.is_one_in(4) ? 40 : 8); text.size() < length;) {
      text += alphabet[dice.below(alphabet.size())];
    }
    texts.push_back(std::move(text));
  }
  return std::make_shared<const grammar::Vocabulary>(texts);
}

std::string random_count(Dice& dice) {
  constexpr size_t kCounts[] = {0, 1, 2, 3, 4, 5, 16, 17, 20};
  const size_t min = dice.one_of(kCounts);
  switch (dice.below(5)) {
    case 0: return "{" + std::to_string(min) + ",}";
    case 1: return "{" + std::to_string(min) + "," + std::to_string(min + 1 + dice.below(20)) + "}";
    case 2: return dice.is_one_in(2) ? "*" : "+";
    case 3: return "?";
    default: return "{" + std::to_string(min + 1) + "}";
  }
}

std::string random_regex(Dice& dice, int depth) {
  constexpr const char* kAtoms[] = {".",  "[a-z]", "[A-Za-z0-9+/]", "\\w", "\\d",  "a",
                                    "ab", "[ab]",  "[^a]",          " ",   "\\s?", "[a-z]{2}"};
  std::string pattern;
  for (size_t parts = 1 + dice.below(3); parts > 0; --parts) {
    const bool is_group = depth > 0 && dice.is_one_in(3);
    if (is_group) {
      pattern +=
          "(" + random_regex(dice, depth - 1) + (dice.is_one_in(2) ? "|" + random_regex(dice, depth - 1) : "") + ")";
    } else {
      pattern += std::string("(") + dice.one_of(kAtoms) + ")";
    }
    if (!dice.is_one_in(3)) pattern += random_count(dice);
  }
  return pattern;
}

std::string random_ebnf(Dice& dice) {
  constexpr const char* kItems[] = {
      "\"a\"", "\"ab\"", "[a-z]", "[ab]", "item", "[^\"]", "\" \"", "(\"a\" | \"b\" item)", "\"1\"", "[0-9a-f]"};
  const auto sequence = [&] {
    std::string text;
    for (size_t parts = 1 + dice.below(3); parts > 0; --parts) {
      text += std::string(text.empty() ? "" : " ") + dice.one_of(kItems);
      if (dice.is_one_in(2)) text += random_count(dice);
    }
    return text;
  };
  return "root ::= " + sequence() + " | " + sequence() + "\nitem ::= \"a\" root? \"b\" | " +
         (dice.is_one_in(2) ? "[a-z]{4}" : "\"a\"");
}

std::string random_schema(Dice& dice, int depth) {
  const auto number = [&](size_t below) { return std::to_string(dice.below(below)); };
  switch (dice.below(depth > 0 ? 9 : 6)) {
    case 0:
      return R"({"type":"string","minLength":)" + number(5) + R"(,"maxLength":)" + std::to_string(5 + dice.below(30)) +
             "}";
    case 1: return R"({"type":"string","pattern":"^[a-z]{4}[a-z ]*$"})";
    case 2: return R"({"type":"integer","minimum":)" + number(100) + "}";
    case 3: return R"({"enum":["a","ab","b a",1,null]})";
    case 4: return R"({"type":"string"})";
    case 5: return dice.is_one_in(2) ? "{}" : R"({"type":"boolean"})";
    case 6:
      return R"({"type":"array","items":)" + random_schema(dice, depth - 1) + R"(,"minItems":)" + number(3) +
             R"(,"maxItems":)" + std::to_string(3 + dice.below(20)) + "}";
    case 7: return R"({"anyOf":[)" + random_schema(dice, depth - 1) + "," + random_schema(dice, depth - 1) + "]}";
    default:
      return R"({"type":"object","properties":{"a":)" + random_schema(dice, depth - 1) + R"(,"ab":)" +
             random_schema(dice, depth - 1) + R"(},"required":["a"],"additionalProperties":false})";
  }
}

Result<GrammarPtr> random_choices(Dice& dice, const VocabularyPtr& vocabulary) {
  std::vector<grammar::ExpressionPtr> texts;
  for (size_t count = 1 + dice.below(6); count > 0; --count) {
    std::string text(1, 'a');
    for (size_t length = dice.below(30); length > 0; --length) text += "ab1 "[dice.below(4)];
    texts.push_back(grammar::literal(text));
  }
  return compile_grammar([&](auto&) -> Result<grammar::ExpressionPtr> { return grammar::choice(texts); }, vocabulary,
                         {});
}

/// A random grammar of any kind, with its notation for the messages.
struct RandomGrammar {
  std::string notation;
  Result<GrammarPtr> grammar;
};

RandomGrammar random_grammar(Dice& dice, const VocabularyPtr& vocabulary) {
  switch (dice.below(5)) {
    case 0: return {"choices", random_choices(dice, vocabulary)};
    case 1: {
      const std::string text = random_ebnf(dice);
      return {text, grammar_from_ebnf(text, vocabulary, {})};
    }
    case 2: {
      const std::string text = random_schema(dice, 2);
      return {text, grammar_from_schema(text, vocabulary, {})};
    }
    default: {
      const std::string text = random_regex(dice, 2);
      return {text, grammar_from_regex(text, vocabulary, {})};
    }
  }
}

/// Advances byte by byte, each with the work budget of a whole token.
bool advances_by_bytes(grammar::Matcher matcher, const grammar::Vocabulary& vocabulary, TokenId token) {
  for (const char c : vocabulary.text_of(token)) {
    TokenId byte = 0;
    while (vocabulary.text_of(byte) != std::string_view(&c, 1)) ++byte;
    if (!matcher.advance(byte)) return false;
  }
  return true;
}

size_t checked_masks = 0;
size_t unknown_masks = 0;  ///< of those: the work budget ended, or the vocabulary cannot spell what is legal

/// Compares the mask with advance() of every token. Returns the tokens of the mask; none if the work budget ends first.
std::vector<TokenId> checked_mask(const grammar::Matcher& matcher, const grammar::Vocabulary& vocabulary) {
  const auto allowed = matcher.allowed();
  ++checked_masks;
  if (allowed == nullptr && !matcher.must_end()) {
    ++unknown_masks;
    return {};
  }
  std::vector<TokenId> tokens;
  for (TokenId token = 0; token < static_cast<TokenId>(vocabulary.size()); ++token) {
    grammar::Matcher next = matcher;
    const bool advances = next.advance(token);
    const bool is_allowed = allowed != nullptr && allowed->contains(token);
    if (advances && !is_allowed) FAIL("token '" << vocabulary.text_of(token) << "' is legal but masked");
    if (is_allowed && !advances) {
      if (advances_by_bytes(matcher, vocabulary, token)) return {};
      FAIL("token '" << vocabulary.text_of(token) << "' is allowed but illegal");
    }
    if (advances) tokens.push_back(token);
  }
  return tokens;
}

/// Writes a random text token by token, with each mask checked.
void check_masks(const GrammarPtr& grammar, std::mt19937_64& random, int steps) {
  grammar::Matcher matcher(grammar, false);
  std::string text;
  for (int step = 0; step < steps && !matcher.must_end(); ++step) {
    INFO("after '" << text << "'");
    const std::vector<TokenId> tokens = checked_mask(matcher, grammar->vocabulary());
    if (tokens.empty()) return;
    const TokenId token = tokens[random() % tokens.size()];
    REQUIRE(matcher.advance(token));
    text += grammar->vocabulary().text_of(token);
  }
}

void check_random_grammars(const VocabularyPtr& vocabulary, std::mt19937_64& random, int count, int steps) {
  Dice dice(random);
  checked_masks = 0;
  unknown_masks = 0;
  int compiled = 0;
  for (int i = 0; i < count; ++i) {
    const RandomGrammar made = random_grammar(dice, vocabulary);
    INFO("grammar " << i << ": " << made.notation);
    if (made.grammar.has_error()) continue;
    ++compiled;
    check_masks(*made.grammar, random, steps);
  }
  CHECK(compiled > count / 3);
  CHECK(unknown_masks * 5 < checked_masks);
}

}  // namespace

TEST_CASE("A token that leaves a counted group is followed", "[mask]") {
  const auto vocabulary = std::make_shared<const grammar::Vocabulary>(std::vector<std::string>{
      "a", "ab", "abcd", "abcde", "ation", "abcd efg", "x y", " ", "x", "=", "abcdefghijklmnopqrstuvwx"});
  std::mt19937_64 random(1);
  unknown_masks = 0;
  for (const char* pattern :
       {"[A-Za-z0-9+/]{4}.*", "[a-z]{20}[a-z]*", "\\w{8}\\w*", "([a-z]{4}){3}[a-z =]*", "[a-z]{16} x",
        "([a-z]{4})*([a-z]{2}==)?", "([a-z]{2,20} )+", "[a-z]{0,17}( [a-z]{1,17})*"}) {
    INFO(pattern);
    const auto grammar = grammar_from_regex(pattern, vocabulary, {}).value();
    for (int trial = 0; trial < 5; ++trial) check_masks(grammar, random, 12);
  }
  CHECK(unknown_masks == 0);
  const auto base64 = grammar_from_regex("[A-Za-z0-9+/]{4}.*", vocabulary, {}).value();
  CHECK(grammar::Matcher(base64, false).allowed()->contains(4));
}

TEST_CASE("Masks near the depth limit equal the tokens that advance", "[mask]") {
  std::vector<std::string> texts = byte_texts();
  texts.insert(texts.end(), {"[[", "[[[[", "]]", "[[[[[[[[", "[]", "]]]]]]]]"});
  const auto vocabulary = std::make_shared<const grammar::Vocabulary>(texts);
  const auto grammar = grammar_from_ebnf("root ::= \"[\" root? \"]\"", vocabulary, {}).value();
  grammar::Matcher matcher(grammar, false);
  for (int depth = 0; depth < 470; ++depth) REQUIRE(matcher.advance('['));
  while (!checked_mask(matcher, *vocabulary).empty() && matcher.advance('[')) {
  }
}

TEST_CASE("Masks of random grammars equal the tokens that advance", "[mask]") {
  INFO("seed " << test_seed());
  std::mt19937_64 random(test_seed());
  SECTION("long tokens") {
    for (int i = 0; i < 20; ++i)
      check_random_grammars(long_token_vocabulary(random), random, static_cast<int>(repetitions(20)), 12);
  }
  SECTION("a byte-level tokenizer") {
    check_random_grammars(books_vocabulary(), random, static_cast<int>(repetitions(200)), 12);
  }
  SECTION("large tokenizers") {
    for (const char* name : {"qwen2", "llama2"}) {
      const std::filesystem::path folder = shared_data_dir() / "tokenizers" / name;
      if (std::filesystem::exists(folder))
        check_random_grammars(vocabulary_of(folder), random, static_cast<int>(repetitions(10)), 5);
    }
  }
}
