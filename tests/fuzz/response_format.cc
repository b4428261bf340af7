#include <simdjson.h>

#include "base/check.h"
#include "base/random.h"
#include "fuzz/byte_vocabulary.h"
#include "fuzz/targets.h"
#include "grammar/ebnf.h"
#include "grammar/json_rules.h"
#include "grammar/lark.h"
#include "grammar/matcher.h"
#include "grammar/json_schema.h"
#include "grammar/regex_parser.h"

namespace millrace::fuzz {
namespace {

/// Reads a grammar of Lark, of whose texts the definition has the JSON strings.
Result<grammar::ExpressionPtr> read_lark(std::string_view text, grammar::Definition& definition) {
  grammar::Definition source;
  auto root = grammar::parse_lark(text, source);
  if (root.has_error()) return root.error();
  source.root = *root;
  return grammar::JsonRules(definition).string_of(source);
}

Result<grammar::ExpressionPtr> read(char notation, std::string_view text, grammar::Definition& definition) {
  if (notation == 'r') return grammar::parse_regex(text);
  if (notation == 'e') return grammar::parse_ebnf(text, definition);
  if (notation == 'l') return read_lark(text, definition);
  return grammar::parse_json_schema(text, definition);
}

/// A text that the grammar lets be written, if it comes to an end soon.
std::optional<std::string> write(const std::shared_ptr<const grammar::Grammar>& grammar) {
  grammar::Matcher matcher(grammar, true);
  std::string text;
  for (uint64_t i = 0; i < 60 && !matcher.must_end(); ++i) {
    const auto allowed = matcher.allowed();
    if (allowed == nullptr) return std::nullopt;
    const auto size = static_cast<TokenId>(grammar->vocabulary().size());
    auto token = static_cast<TokenId>(uniform_at(text.size(), i) * size);
    if (allowed->contains(kEndToken)) token = kEndToken;
    while (!allowed->contains(token)) token = (token + 1) % size;
    CHECK(matcher.advance(token), "a token that may come next does not");
    if (token == kEndToken) return text;
    text += grammar->vocabulary().text_of(token);
  }
  return matcher.may_end() ? std::optional(text) : std::nullopt;
}

}  // namespace

void response_format(std::string_view input) {
  if (input.empty()) return;
  grammar::Definition definition;
  const auto expression = read(input[0], input.substr(1), definition);
  if (expression.has_error()) {
    CHECK(expression.error().code == ErrorCode::kInvalidArgument);
    return;
  }
  definition.root = *expression;
  const auto grammar = grammar::Grammar::compile(definition, byte_vocabulary(), {kEndToken});
  if (grammar.has_error()) {
    CHECK(grammar.error().code == ErrorCode::kInvalidArgument);
    return;
  }
  const auto text = write(*grammar);
  if (!text || input[0] == 'r' || input[0] == 'e') return;
  simdjson::dom::parser parser;
  CHECK(parser.parse(*text).error() == simdjson::SUCCESS, "what was written is no JSON: {}", *text);
}

}  // namespace millrace::fuzz
