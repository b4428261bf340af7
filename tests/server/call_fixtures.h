#pragma once

#include <fmt/format.h>

#include <catch2/catch.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "grammar/grammar_fixtures.h"
#include "server/output_constraint.h"
#include "text/tool_calls/output_parser.h"
#include "text/tool_calls/tool_formats.h"

namespace millrace::test {

[[nodiscard]] inline std::vector<text::ToolFormat> all_formats() {
  std::vector<text::ToolFormat> formats;
  for (size_t i = 0; i < text::kToolFormatCount; ++i) formats.push_back(static_cast<text::ToolFormat>(i));
  return formats;
}
inline constexpr const char* kSchema =
    R"({"type":"object","properties":{"at":{"enum":["x","y","a \"b\""]},"far":{"type":"boolean"}},)"
    R"("required":["at"],"additionalProperties":false})";

[[nodiscard]] inline server::openai::Tool tool(std::string name, std::string parameters = kSchema,
                                               bool is_strict = true) {
  return {std::move(name), std::move(parameters), is_strict, "tools[0].function"};
}

[[nodiscard]] inline server::OutputConstraint calling(text::ToolFormat format, std::vector<server::openai::Tool> tools,
                                                      bool must_call = true) {
  server::OutputConstraint constraint;
  constraint.calls = server::ToolCallConstraint{.format = format, .tools = std::move(tools), .must_call = must_call};
  return constraint;
}

/// Returns a vocabulary of bytes, where token 256 ends an answer.
[[nodiscard]] inline GrammarPtr grammar_of(const server::OutputConstraint& constraint,
                                           server::SchemaEnforcement arguments = server::SchemaEnforcement::kAll) {
  return grammar::Grammar::compile(server::build_grammar(constraint, arguments).value(), byte_vocabulary(), {kEnd})
      .value();
}

/// Parses an output in pieces of at most `piece_size` bytes.
[[nodiscard]] inline text::OutputPart parse(const server::OutputConstraint& constraint, std::string_view text,
                                            size_t piece_size = std::string_view::npos) {
  text::OutputFormat format;
  if (constraint.calls) format.tools = constraint.calls->format;
  auto types = std::make_shared<text::ParameterTypes>();
  if (constraint.calls) {
    for (const server::openai::Tool& tool : constraint.calls->tools) types->add(tool.name, tool.parameters);
  }
  format.parameter_types = std::move(types);
  if (constraint.reasoning != server::ReasoningMode::kNone) format.reasoning = constraint.reasoning_format;
  format.begins_in_reasoning = constraint.reasoning == server::ReasoningMode::kOpened;
  format.reasoning_is_closed = constraint.response_format.has_value();
  text::OutputParser parser(format);
  text::OutputPart all;
  const auto push = [&](std::string_view piece) {
    text::OutputPart part;
    parser.push(piece, part);
    if (part.content_was_reasoning) all.reasoning += std::exchange(all.content, {});
    all.reasoning += part.reasoning;
    all.content += part.content;
    for (text::ToolCallPart& call : part.calls) text::append_call_part(all.calls, std::move(call));
  };
  push(constraint.prefix);
  for (; !text.empty(); text.remove_prefix(std::min(piece_size, text.size()))) push(text.substr(0, piece_size));
  parser.finish(all);
  CHECK(parser.calls_finished() == all.calls.size());
  return all;
}

/// Returns the arguments at and far, the latter unless it is empty, as a syntax writes them.
[[nodiscard]] inline std::string written_arguments(const text::ToolCallSyntax& syntax, std::string_view at,
                                                   std::string_view far) {
  using enum text::ArgumentNotation;
  if (syntax.notation == kParameters) {
    const text::ParameterTags& tags = *syntax.tags;
    const std::string open = tags.has_string_attribute ? " string=\"false\">" : std::string(tags.value_open);
    std::string out = fmt::format("{}at{}{}{}{}", tags.open, tags.key_end, tags.value_open, at, tags.value_end);
    if (!far.empty()) out += fmt::format("{}far{}{}{}{}", tags.open, tags.key_end, open, far, tags.value_end);
    return out;
  }
  if (syntax.notation == kLiterals) {
    const text::LiteralDialect& dialect = *syntax.dialect;
    const std::string_view quote = dialect.quote.empty() ? "\"" : dialect.quote;
    const std::string_view word = far == "true" ? dialect.true_word : dialect.false_word;
    std::string out = fmt::format("{}at{}{}{}{}", dialect.open, dialect.key_end, quote, at, quote);
    if (!far.empty()) out += fmt::format("{}far{}{}", dialect.separator, dialect.key_end, word);
    return out + dialect.close;
  }
  return far.empty() ? fmt::format(R"({{"at": "{}"}})", at) : fmt::format(R"({{"at": "{}", "far": {}}})", at, far);
}

/// Returns one call without what stands around all of them.
[[nodiscard]] inline std::string call_of(const text::ToolCallSyntax& syntax, std::string_view name,
                                         std::string_view arguments) {
  std::string id(syntax.id_open);
  if (syntax.id == text::CallIdSyntax::kNumber) id += "12";
  if (syntax.id == text::CallIdSyntax::kNineCharacters) id += "a1b2c3d4e";
  return fmt::format("{}{}{}{}{}{}{}{}{}", syntax.call_open, syntax.id_is_first ? id : "", syntax.before_name, name,
                     syntax.id_is_first ? "" : id, syntax.before_arguments, arguments, syntax.after_arguments,
                     syntax.call_close);
}

[[nodiscard]] inline std::string output_of(const text::ToolCallSyntax& syntax, std::string_view calls) {
  return fmt::format("{}{}{}{}{}", syntax.section_open, syntax.list_open, calls, syntax.list_close,
                     syntax.section_close);
}

/// Returns calls of the tools `f` and `g` in a format, or of `f` alone where there is one call only.
[[nodiscard]] inline std::string two_calls(text::ToolFormat format) {
  const text::ToolCallSyntax& syntax = text::row_of(format).written.front();
  std::string calls = call_of(syntax, "f", written_arguments(syntax, "x", ""));
  if (!syntax.allows_one_call) {
    calls += std::string(syntax.separator) + call_of(syntax, "g", written_arguments(syntax, "y", "true"));
  }
  return output_of(syntax, calls);
}

/// Returns whether an output of the format ends with its first call.
[[nodiscard]] inline bool allows_one(text::ToolFormat format) {
  return text::row_of(format).written.front().allows_one_call;
}

[[nodiscard]] inline std::string replaced(std::string text, std::string_view what, std::string_view by) {
  const size_t at = text.find(what);
  REQUIRE(at != std::string::npos);
  return text.replace(at, what.size(), by);
}

}  // namespace millrace::test
