// Every token mask is compared with what the grammar does when it advances by each token of the vocabulary, and with
// the mask that is computed in parts.
#include <catch2/catch.hpp>
#include <filesystem>

#include "grammar/random_grammars.h"
#include "support/effort.h"
#include "support/mentions.h"
#include "support/test_seed.h"

using namespace millrace;
using namespace millrace::test;

namespace {

size_t checked_masks = 0;
size_t unknown_masks = 0;  ///< of those: the vocabulary cannot spell what is legal

/// Compares the mask with advance() of every token. Returns the tokens of the mask.
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
    if (is_allowed && !advances) FAIL("token '" << vocabulary.text_of(token) << "' is allowed but illegal");
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

/// The steps that one call may exceed its budget by: it ends what cannot be interrupted.
constexpr uint64_t kMaxExcess = 2000;

/// Settles a matcher in many calls with small budgets. Returns the number of calls.
size_t settle_in_parts(grammar::Matcher& matcher, std::mt19937_64& random) {
  for (size_t calls = 1;; ++calls) {
    grammar::WorkBudget budget(1 + random() % 50);
    const bool is_settled = matcher.settle(budget);
    REQUIRE(budget.used() < 50 + kMaxExcess);
    if (is_settled) return calls;
  }
}

/// Follows one output through two copies of a grammar: one computes masks at once, the other in parts. Every other
/// matcher of the second grammar continues what the first has begun.
size_t check_parts(const GrammarPtr& at_once, const GrammarPtr& in_parts, std::mt19937_64& random, int steps) {
  grammar::Matcher whole(at_once, true);
  grammar::Matcher first(in_parts, true);
  size_t calls = 0;
  for (int step = 0; step < steps; ++step) {
    grammar::Matcher second = first;
    grammar::WorkBudget few(random() % 100);
    (void)second.settle(few);
    calls += settle_in_parts(first, random);
    (void)settle_in_parts(second, random);
    const auto mask = whole.allowed();
    REQUIRE((mask == nullptr) == (first.allowed() == nullptr));
    REQUIRE((mask == nullptr) == (second.allowed() == nullptr));
    REQUIRE(whole.must_end() == first.must_end());
    if (mask == nullptr) break;
    REQUIRE(*mask == *first.allowed());
    REQUIRE(*mask == *second.allowed());
    const std::vector<TokenId> tokens = mask->members(SIZE_MAX);
    const TokenId token = tokens[random() % tokens.size()];
    whole.append(token);
    first.append(token);
  }
  return calls;
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
      "a", "ab", "abcd", "abcde", "ation", "abcd efg", "x y", " ", "x", "=", "abcdefghijklmnopqrstuvwx",
      "b", "c",  "d",    "e",     "f",     "g",        "h",   "i", "j", "k", "l",
      "m", "n",  "o",    "p",     "q",     "r",        "s",   "t", "u", "v", "w",
      "y"});
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

TEST_CASE("No output comes to where no token can follow", "[mask]") {
  INFO("seed " << test_seed());
  std::mt19937_64 random(test_seed());
  size_t refused = 0;
  size_t steps = 0;
  const uint64_t count = repetitions(200);
  for (uint64_t i = 0; i < count; ++i) {
    Dice dice(random);
    const auto vocabulary = incomplete_vocabulary(random);
    const Beginning beginning = random_beginning(dice);
    const RandomGrammar drawn = random_grammar(dice, vocabulary, {}, beginning);
    INFO("grammar " << i << ": " << drawn.notation << " after " << beginning.text);
    if (drawn.grammar.has_error()) {
      ++refused;
      continue;
    }
    grammar::Matcher matcher(*drawn.grammar, false);
    for (int step = 0; step < 30 && !matcher.must_end(); ++step, ++steps) {
      const auto allowed = matcher.allowed();
      REQUIRE(allowed != nullptr);
      const std::vector<TokenId> tokens = allowed->members(allowed->count());
      REQUIRE(matcher.advance(tokens[random() % tokens.size()]));
    }
  }
  CHECK(refused < count / 2);
  CHECK(steps > 2 * count);
}

TEST_CASE("A prefix that no token spells is allowed in the prompt alone", "[mask]") {
  const auto vocabulary =
      std::make_shared<const grammar::Vocabulary>(std::vector<std::string>{"a", "b", "\n", "t", ">"});
  const auto compile = [&](std::string_view ebnf, const char* prefix) {
    return compile_grammar(
        [&](auto& definition) {
          definition.prefix = prefix;
          return grammar::parse_ebnf(ebnf, definition);
        },
        vocabulary, {});
  };
  const auto refusal = [&](std::string_view ebnf, const char* prefix) { return message_of(compile(ebnf, prefix)); };
  CHECK_THAT(refusal(R"(root ::= "<t>" [ab] "\n<t>")", "<t>"), Mentions("no token is '<' alone"));
  CHECK_THAT(refusal(R"(root ::= "a<t>" [ab])", "a"), Mentions("no token is '<' alone"));
  CHECK_THAT(refusal("root ::= \"a\" [\\x00-\\x02]", ""), Mentions("U+0000"));
  for (const char* prefix : {"<", "<t", "<t>"}) {
    CAPTURE(prefix);
    const auto calls = compile(R"(root ::= call ("\n" call)*
      call ::= ("<t>" | "<u>") [ab])",
                               prefix);
    REQUIRE(calls.has_value());
    grammar::Matcher matcher(*calls, false);
    for (const char c : std::string_view("<t>").substr(std::string_view(prefix).size()))
      REQUIRE(matcher.advance(c == 't' ? 3 : 4));
    REQUIRE(matcher.allowed()->members(9) == std::vector<TokenId>{0, 1});
    REQUIRE(matcher.advance(0));
    REQUIRE(matcher.must_end());  // another call would begin with "<"
  }
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

TEST_CASE("Masks computed in parts equal masks computed at once", "[mask]") {
  INFO("seed " << test_seed());
  std::mt19937_64 random(test_seed());
  size_t masks = 0;
  size_t calls = 0;
  for (uint64_t i = 0; i < repetitions(150); ++i) {
    const VocabularyPtr vocabulary = i % 2 == 0 ? long_token_vocabulary(random) : books_vocabulary();
    std::mt19937_64 same = random;
    Dice dice(random);
    Dice same_dice(same);
    const RandomGrammar at_once = random_grammar(dice, vocabulary);
    // Every other DFA of the second grammar is so small that it is replaced in the middle of masks.
    const RandomGrammar in_parts = random_grammar(
        same_dice, vocabulary,
        i % 4 < 2 ? grammar::GrammarLimits{}
                  : grammar::GrammarLimits{
                        .first_mask_steps = 1'000'000'000, .dfa_bytes = 100'000, .adaptive_bytes = 10'000});
    INFO("grammar " << i << ": " << at_once.notation);
    REQUIRE(at_once.notation == in_parts.notation);
    if (at_once.grammar.has_error()) continue;
    ++masks;
    calls += check_parts(*at_once.grammar, *in_parts.grammar, random, 8);
  }
  CHECK(calls > 20 * masks);
}

TEST_CASE("Pieces of work stay small where many parts may follow", "[mask]") {
  // All work is counted, so that none is left out of the bound.
  constexpr uint64_t kSteps = 1000;
  constexpr uint64_t kExcess = 6000;
  std::vector<std::string> texts = {"a", "b", "ab", "ba", "aab", "abab", "bb", "x", "c", "ac", "x1", "dx"};
  const auto vocabulary = std::make_shared<const grammar::Vocabulary>(texts);
  for (const char* pattern : {"(a?b?){33000}x", "(a?b?c?){3000}[^x]*", "((.a|.b|.c|.d|.x)?(ab|a)?){3000}x",
                              "([a-d]{0,3}x?){9000}", "(\\p{L}?1?){9000}x"}) {
    INFO(pattern);
    const auto at_once = grammar_from_regex(pattern, vocabulary, {}).value();
    const auto in_pieces = grammar_from_regex(pattern, vocabulary, {}, {.dfa_bytes = 5 << 20}).value();
    std::mt19937_64 random(7);
    grammar::Matcher whole(at_once, false);
    grammar::Matcher pieces(in_pieces, false);
    for (int step = 0; step < 12; ++step) {
      for (bool is_settled = false; !is_settled;) {
        grammar::WorkBudget budget(kSteps);
        is_settled = pieces.settle(budget);
        REQUIRE(budget.used() < kSteps + kExcess);
      }
      const auto mask = whole.allowed();
      REQUIRE(mask != nullptr);
      REQUIRE(*mask == *pieces.allowed());
      const std::vector<TokenId> tokens = mask->members(SIZE_MAX);
      const TokenId token = tokens[random() % tokens.size()];
      if (texts[static_cast<size_t>(token)].find('x') != std::string::npos) continue;
      whole.append(token);
      pieces.append(token);
    }
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
