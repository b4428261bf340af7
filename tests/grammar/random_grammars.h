#pragma once

#include <catch2/catch.hpp>
#include <filesystem>
#include <random>
#include <string>

#include "grammar/grammar_fixtures.h"
#include "support/paths.h"
#include "text/tokenizer/tokenizer.h"

/// Random grammars of all notations, and vocabularies for them.
namespace millrace::test {

using VocabularyPtr = std::shared_ptr<const grammar::Vocabulary>;

[[nodiscard]] inline VocabularyPtr vocabulary_of(const std::filesystem::path& folder) {
  const auto tokenizer = text::Tokenizer::load(folder.string()).value();
  std::vector<std::string> texts(tokenizer->vocab_size());
  for (TokenId token = 0; token < static_cast<TokenId>(texts.size()); ++token) {
    if (!tokenizer->is_special(token)) texts[static_cast<size_t>(token)] = tokenizer->token_bytes(token);
  }
  return std::make_shared<const grammar::Vocabulary>(texts);
}

[[nodiscard]] inline const VocabularyPtr& books_vocabulary() {
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
[[nodiscard]] inline VocabularyPtr long_token_vocabulary(std::mt19937_64& random) {
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

/// Returns a vocabulary in which some bytes, characters or tokens of the model's are missing.
[[nodiscard]] inline VocabularyPtr incomplete_vocabulary(std::mt19937_64& random) {
  Dice dice(random);
  const grammar::Vocabulary& whole = *books_vocabulary();
  const size_t kind = dice.below(3);
  std::vector<std::string> texts(whole.size());
  for (TokenId token = 0; token < static_cast<TokenId>(whole.size()); ++token) {
    const std::string_view text = whole.text_of(token);
    const bool is_ascii = text.size() == 1 && static_cast<uint8_t>(text[0]) < 0x80;
    const bool is_missing = kind == 0 ? text.size() == 1 && !is_ascii : text.size() == 1 && dice.is_one_in(kind * 40);
    if (!is_missing) texts[static_cast<size_t>(token)] = text;
  }
  for (const char* character : {"\u00e9", "\u20ac", "\u65e5", "\U0001F600"}) {
    if (dice.is_one_in(2)) texts.emplace_back(character);
  }
  return std::make_shared<const grammar::Vocabulary>(texts);
}

[[nodiscard]] inline std::string random_count(Dice& dice) {
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

[[nodiscard]] inline std::string random_regex(Dice& dice, int depth) {
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

[[nodiscard]] inline std::string random_ebnf(Dice& dice) {
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

[[nodiscard]] inline std::string random_schema(Dice& dice, int depth) {
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

[[nodiscard]] inline Result<GrammarPtr> random_choices(Dice& dice, const VocabularyPtr& vocabulary,
                                                       const grammar::GrammarLimits& limits,
                                                       const Beginning& beginning) {
  std::vector<grammar::ExpressionPtr> texts;
  for (size_t count = 1 + dice.below(6); count > 0; --count) {
    std::string text(1, 'a');
    for (size_t length = dice.below(30); length > 0; --length) text += "ab1 "[dice.below(4)];
    texts.push_back(grammar::literal(text));
  }
  return compile_grammar([&](auto&) -> Result<grammar::ExpressionPtr> { return grammar::choice(texts); }, vocabulary,
                         {}, limits, beginning);
}

/// Returns a beginning of which some incomplete vocabularies lack a part.
[[nodiscard]] inline Beginning random_beginning(Dice& dice) {
  const Beginning beginnings[] = {
      {}, {"\u20acab", 3}, {"\u20acab", 4}, {"a\u00e9", 3}, {"a\u00e9<", 3}, {"\u65e5 <", 5}};
  return dice.one_of(beginnings);
}

/// A random grammar of any kind, with its notation for the messages.
struct RandomGrammar {
  std::string notation;
  Result<GrammarPtr> grammar;
};

[[nodiscard]] inline RandomGrammar random_grammar(Dice& dice, const VocabularyPtr& vocabulary,
                                                  const grammar::GrammarLimits& limits = {},
                                                  const Beginning& beginning = {}) {
  switch (dice.below(5)) {
    case 0: return {"choices", random_choices(dice, vocabulary, limits, beginning)};
    case 1: {
      const std::string text = random_ebnf(dice);
      return {text, grammar_from_ebnf(text, vocabulary, {}, limits, beginning)};
    }
    case 2: {
      const std::string text = random_schema(dice, 2);
      return {text, grammar_from_schema(text, vocabulary, {}, limits, beginning)};
    }
    default: {
      const std::string text = random_regex(dice, 2);
      return {text, grammar_from_regex(text, vocabulary, {}, limits, beginning)};
    }
  }
}

}  // namespace millrace::test
