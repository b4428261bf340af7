#pragma once

#include <catch2/catch.hpp>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "grammar/ebnf.h"
#include "grammar/lark.h"
#include "grammar/matcher.h"
#include "grammar/json_schema.h"
#include "grammar/regex_parser.h"

namespace millrace::test {

/// A vocabulary of the 256 bytes and one token that ends an answer, so that every text can be spelt.
inline constexpr TokenId kEnd = 256;
[[nodiscard]] inline std::vector<std::string> byte_texts() {
  std::vector<std::string> texts;
  for (int byte = 0; byte < 256; ++byte) texts.emplace_back(1, static_cast<char>(byte));
  texts.emplace_back();
  return texts;
}

[[nodiscard]] inline std::shared_ptr<const grammar::Vocabulary> byte_vocabulary() {
  static const auto vocabulary = std::make_shared<const grammar::Vocabulary>(byte_texts());
  return vocabulary;
}

/// The grammar that Codex gives with its tool apply_patch.
inline constexpr const char* kPatchLark = R"(start: begin_patch hunk+ end_patch
begin_patch: "*** Begin Patch" LF
end_patch: "*** End Patch" LF?

hunk: add_hunk | delete_hunk | update_hunk
add_hunk: "*** Add File: " filename LF add_line+
delete_hunk: "*** Delete File: " filename LF
update_hunk: "*** Update File: " filename LF change_move? change?
filename: /(.+)/
add_line: "+" /(.*)/ LF -> line
change_move: "*** Move to: " filename LF
change: (change_context | change_line)+ eof_line?
change_context: ("@@" | "@@ " /(.+)/) LF
change_line: ("+" | "-" | " ") /(.*)/ LF
eof_line: "*** End of File" LF

%import common.LF
)";

using GrammarPtr = std::shared_ptr<const grammar::Grammar>;

/// How every text begins: with `text`, of which the prompt already holds `given` bytes. One more line may begin so.
struct Beginning {
  std::string text;
  size_t given = 0;
};

/// `read` adds to a definition and gives its root.
template <class Read>
[[nodiscard]] Result<GrammarPtr> compile_grammar(const Read& read,
                                                 std::shared_ptr<const grammar::Vocabulary> vocabulary,
                                                 std::vector<TokenId> stop_token_ids,
                                                 const grammar::GrammarLimits& limits = {},
                                                 const Beginning& beginning = {}) {
  grammar::Definition definition;
  auto root = read(definition);
  if (root.has_error()) return root.error();
  definition.root = *root;
  if (!beginning.text.empty()) {
    const auto first = grammar::literal(beginning.text);
    const auto again = grammar::optional(grammar::sequence({grammar::literal("\n"), first}));
    definition.root = grammar::sequence({first, *root, again});
    definition.prefix = beginning.text.substr(0, beginning.given);
  }
  return grammar::Grammar::compile(definition, std::move(vocabulary), std::move(stop_token_ids), limits);
}

/// What the notations describe, over a vocabulary.
[[nodiscard]] inline Result<GrammarPtr> grammar_from_regex(
    std::string_view pattern, std::shared_ptr<const grammar::Vocabulary> vocabulary = byte_vocabulary(),
    std::vector<TokenId> stop_token_ids = {kEnd}, const grammar::GrammarLimits& limits = {},
    const Beginning& beginning = {}) {
  return compile_grammar([pattern](auto&) { return grammar::parse_regex(pattern); }, std::move(vocabulary),
                         std::move(stop_token_ids), limits, beginning);
}
[[nodiscard]] inline Result<GrammarPtr> grammar_from_ebnf(
    std::string_view text, std::shared_ptr<const grammar::Vocabulary> vocabulary = byte_vocabulary(),
    std::vector<TokenId> stop_token_ids = {kEnd}, const grammar::GrammarLimits& limits = {},
    const Beginning& beginning = {}) {
  return compile_grammar([text](auto& definition) { return grammar::parse_ebnf(text, definition); },
                         std::move(vocabulary), std::move(stop_token_ids), limits, beginning);
}
[[nodiscard]] inline Result<GrammarPtr> grammar_from_lark(std::string_view text) {
  return compile_grammar([text](auto& definition) { return grammar::parse_lark(text, definition); }, byte_vocabulary(),
                         {kEnd});
}
[[nodiscard]] inline Result<GrammarPtr> grammar_from_schema(
    std::string_view schema, std::shared_ptr<const grammar::Vocabulary> vocabulary = byte_vocabulary(),
    std::vector<TokenId> stop_token_ids = {kEnd}, const grammar::GrammarLimits& limits = {},
    const Beginning& beginning = {}) {
  return compile_grammar([schema](auto& definition) { return grammar::parse_json_schema(schema, definition); },
                         std::move(vocabulary), std::move(stop_token_ids), limits, beginning);
}

/// The message of what must be an error.
[[nodiscard]] inline std::string message_of(const Result<GrammarPtr>& result) {
  return result.has_error() ? result.error().message : "no error";
}

/// Returns whether the text as a whole matches.
[[nodiscard]] inline bool matches(const GrammarPtr& grammar, std::string_view text) {
  grammar::Matcher matcher(grammar, true);
  for (const char c : text) {
    if (!matcher.advance(static_cast<uint8_t>(c))) return false;
  }
  return matcher.may_end();
}

/// A text that the grammar lets be written, token by token, and whether it came to its end within `max_tokens` tokens.
/// Prefers to end, so that recursion does.
struct RandomText {
  std::string text;
  bool is_whole = false;
};
[[nodiscard]] inline RandomText random_text(const GrammarPtr& grammar, std::mt19937_64& random, size_t max_tokens) {
  grammar::Matcher matcher(grammar, true);
  RandomText written;
  for (size_t i = 0; i < max_tokens && !matcher.must_end(); ++i) {
    const auto allowed = matcher.allowed();
    REQUIRE(allowed != nullptr);
    std::vector<TokenId> tokens;
    for (TokenId token = 0; token < static_cast<TokenId>(grammar->vocabulary().size()); ++token) {
      if (allowed->contains(token)) tokens.push_back(token);
    }
    TokenId token = tokens.at(random() % tokens.size());
    if (matcher.may_end() && random() % 2 == 0) token = grammar->stop_token_ids().at(0);
    const bool advanced = matcher.advance(token);
    REQUIRE(advanced);
    if (token == grammar->stop_token_ids().at(0)) break;
    written.text += grammar->vocabulary().text_of(token);
  }
  written.is_whole = matcher.may_end();
  return written;
}

}  // namespace millrace::test
