#include <algorithm>
#include <catch2/catch.hpp>
#include <set>

#include "base/text_file.h"
#include "server/call_fixtures.h"
#include "server/grammar_cache.h"
#include "support/paths.h"
#include "support/skip.h"
#include "text/tokenizer/tokenizer.h"
#include "text/tool_calls/partial_match.h"

using namespace millrace;
using namespace millrace::server;
using namespace millrace::test;

namespace {

/// Adds the parts of a text that look like tags.
void add_tags(std::string_view text, std::set<std::string>& tags) {
  constexpr std::string_view kDsml = "｜DSML｜";
  if (text.find(kDsml) != text.npos) {
    tags.emplace(kDsml);
    return;
  }
  for (const auto& [open, close] : {std::pair{'<', '>'}, std::pair{'[', ']'}}) {
    for (size_t at = text.find(open); at != text.npos; at = text.find(open, at + 1)) {
      const size_t end = text.find(close, at);
      if (end != text.npos && end > at + 1) tags.emplace(text.substr(at, end + 1 - at));
    }
  }
}

std::set<std::string> tags_of(const text::ToolCallSyntax& syntax) {
  std::set<std::string> tags;
  for (const std::string_view part :
       {syntax.section_open, syntax.call_open, syntax.before_name, syntax.before_arguments, syntax.after_arguments,
        syntax.call_close, syntax.section_close, syntax.id_open}) {
    add_tags(part, tags);
  }
  if (syntax.dialect != nullptr) add_tags(syntax.dialect->quote, tags);
  if (syntax.tags != nullptr) {
    for (const std::string_view part :
         {syntax.tags->open, syntax.tags->key_end, syntax.tags->value_open, syntax.tags->value_end}) {
      add_tags(part, tags);
    }
  }
  return tags;
}

/// A format's grammar over bytes and the tags that its calls are made of.
struct TaggedFormat {
  explicit TaggedFormat(text::ToolFormat which, bool must_call) : format(which) {
    std::vector<std::string> texts = byte_texts();
    for (const std::string& tag : tags_of(syntax())) {
      tags.push_back(static_cast<TokenId>(texts.size()));
      texts.push_back(tag);
    }
    constexpr const char* kText = R"({"type":"object","properties":{"at":{"type":"string"}},"required":["at"]})";
    const OutputConstraint constraint = calling(format, {tool("f", kText)}, must_call);
    grammar = grammar::Grammar::compile(build_grammar(constraint, SchemaEnforcement::kAll).value(),
                                        std::make_shared<const grammar::Vocabulary>(texts, tags), {kEnd})
                  .value();
  }
  [[nodiscard]] const text::ToolCallSyntax& syntax() const { return text::row_of(format).written.front(); }
  [[nodiscard]] std::string_view text_of(TokenId token) const { return grammar->vocabulary().text_of(token); }
  /// Returns the tags that may come next.
  [[nodiscard]] std::vector<std::string> allowed(const grammar::Matcher& matcher) const {
    std::vector<std::string> found;
    const auto mask = matcher.allowed();
    for (const TokenId tag : tags) {
      if (mask != nullptr && mask->contains(tag)) found.emplace_back(text_of(tag));
    }
    return found;
  }
  /// Appends a text, by tags where it spells them.
  void write(grammar::Matcher& matcher, std::string_view text) const {
    while (!text.empty()) {
      TokenId next = static_cast<uint8_t>(text.front());
      for (const TokenId tag : tags) {
        if (text.starts_with(text_of(tag))) next = tag;
      }
      INFO(to_string(format) << " before " << text);
      REQUIRE(matcher.advance(next));
      text.remove_prefix(text_of(next).size());
    }
  }

  text::ToolFormat format;
  std::vector<TokenId> tags;
  GrammarPtr grammar;
};

}  // namespace

TEST_CASE("Calls in every format are written with its tags") {
  for (const text::ToolFormat format : all_formats()) {
    const TaggedFormat tagged(format, true);
    CAPTURE(to_string(format));
    const std::string arguments = written_arguments(tagged.syntax(), "some text", "");
    const std::string output = output_of(tagged.syntax(), call_of(tagged.syntax(), "f", arguments));
    const size_t inside = output.find("some") + 4;
    grammar::Matcher matcher(tagged.grammar, true);
    tagged.write(matcher, std::string_view(output).substr(0, inside));
    // Within a string, only the tag that ends it may come.
    for (const std::string& tag : tagged.allowed(matcher)) {
      std::string_view end;
      if (tagged.syntax().tags != nullptr) end = tagged.syntax().tags->value_end;
      if (tagged.syntax().dialect != nullptr) end = tagged.syntax().dialect->quote;
      CHECK(text::without_space(end).starts_with(tag));
    }
    tagged.write(matcher, std::string_view(output).substr(inside));
    CHECK(matcher.may_end());
  }
}

TEST_CASE("Text around calls holds no tag from within them") {
  for (const text::ToolFormat format : all_formats()) {
    const TaggedFormat tagged(format, false);
    CAPTURE(to_string(format));
    const std::string_view start = text::tool_call_start_tag(format);
    grammar::Matcher matcher(tagged.grammar, true);
    tagged.write(matcher, "some text");
    for (const std::string& tag : tagged.allowed(matcher)) {
      const bool is_of_answers = std::ranges::find(text::tags_of_answers(), tag) != text::tags_of_answers().end();
      CHECK((start.starts_with(tag) || is_of_answers));
    }
    if (start.empty()) continue;
    const std::string arguments = written_arguments(tagged.syntax(), "x", "");
    tagged.write(matcher, output_of(tagged.syntax(), call_of(tagged.syntax(), "f", arguments)));
    CHECK(matcher.may_end());
  }
}

TEST_CASE("Tags of a real vocabulary stay out of strings") {
  const auto folder = shared_data_dir() / "tokenizers/qwen2";
  if (!std::filesystem::exists(folder)) SKIP_TEST("shared/data/tokenizers is absent");
  const auto tokenizer = text::Tokenizer::load(folder).value();
  const TokenId open = tokenizer->token_to_id("<tool_call>").value();
  const TokenId close = tokenizer->token_to_id("</tool_call>").value();
  CHECK_FALSE(tokenizer->is_special(close));
  CHECK(tokenizer->is_added(close));
  GrammarCache grammars(tokenizer, static_cast<uint32_t>(tokenizer->vocab_size()), {151'645});
  const auto check = [&](const OutputConstraint& constraint, std::string_view before, bool has_open, bool has_close) {
    CAPTURE(before);
    grammar::Matcher matcher(grammars.get_or_compile(constraint).value(), true);
    for (const TokenId token : tokenizer->encode(before, false)) REQUIRE(matcher.advance(token));
    CHECK(matcher.allowed()->contains(open) == has_open);
    CHECK(matcher.allowed()->contains(close) == has_close);
  };
  constexpr const char* kText = R"({"type":"object","properties":{"at":{"type":"string"}},"required":["at"]})";
  const OutputConstraint calls = calling(text::ToolFormat::kHermes, {tool("f", kText)});
  check(calls, "", true, false);
  check(calls, "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"at\": \"a", false, false);
  check(calls, "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"at\": \"a\"}}\n", false, true);
  OutputConstraint form;
  form.response_format = openai::ResponseFormat{openai::ResponseFormat::Kind::kJsonObject, {""}, "f", "f"};
  check(form, "{\"a\": \"b", false, false);
  form.response_format = openai::ResponseFormat{openai::ResponseFormat::Kind::kRegex, {"<tool_call>.*"}, "f", "f"};
  check(form, "", true, false);
  check(form, "<tool_call>a", false, false);
}
