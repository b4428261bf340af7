#include "server/output_constraint.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "grammar/char_set.h"
#include "grammar/ebnf.h"
#include "grammar/json_schema.h"
#include "grammar/json_schema_types.h"
#include "grammar/regex_parser.h"
#include "grammar/uncut_values.h"
#include "grammar/until_tag.h"
#include "server/argument_grammar.h"

namespace millrace::server {
namespace {

using grammar::CharSet;
using grammar::choice;
using grammar::Definition;
using grammar::ExpressionPtr;
using grammar::literal;
using grammar::one_of;
using grammar::reference;
using grammar::repeat;
using grammar::sequence;
using grammar::until_tag;
using openai::ApiResult;
using openai::bad_request;
using openai::ResponseFormat;

CharSet whitespace_chars() {
  CharSet set(U' ');
  set.add(U'\t', U'\n');
  set.add(U'\r', U'\r');
  return set;
}

/// Returns the space that a model may put between the parts of an output.
ExpressionPtr optional_whitespace() {
  return repeat(one_of(whitespace_chars()), 0, 8);
}

/// Returns one of the characters, or a tag that may stand in answers.
ExpressionPtr answer_part(CharSet chars) {
  std::vector<ExpressionPtr> ways = {one_of(std::move(chars))};
  for (const std::string_view tag : text::tags_of_answers()) ways.push_back(grammar::tagged(tag));
  return choice(std::move(ways));
}

/// Builds the definition of one constraint's grammar. Lives as long as build_grammar runs.
class GrammarBuilder {
 public:
  GrammarBuilder(const OutputConstraint& constraint, SchemaEnforcement enforcement)
      : constraint_(constraint), enforcement_(enforcement) {}

  ApiResult<Definition> build() {
    ExpressionPtr root;
    if (constraint_.calls) {
      if (auto refused = read_tools()) return *refused;
      root = calls();
    }
    if (constraint_.response_format && !(constraint_.calls && constraint_.calls->must_call)) {
      auto format = parse_response_format(*constraint_.response_format);
      if (format.has_error()) {
        return bad_request(constraint_.response_format->field, "{}: {}", constraint_.response_format->name,
                           format.error().message);
      }
      ExpressionPtr content = tagged_content(*format);
      root = root == nullptr ? content : choice({content, std::move(root)});
    }
    definition_.root = after_reasoning(std::move(root));
    definition_.prefix = constraint_.prefix;
    return std::move(definition_);
  }

 private:
  /// Returns JSON content, which holds no word that ends a message.
  Result<ExpressionPtr> parse_json_format(const ResponseFormat& format) {
    const bool has_reasoning = constraint_.reasoning != ReasoningMode::kNone;
    const bool is_harmony = (has_reasoning && constraint_.reasoning_format == text::ReasoningFormat::kHarmony) ||
                            (constraint_.calls && constraint_.calls->format == text::ToolFormat::kHarmony);
    grammar::UncutValues uncut({text::kHarmonyEnds.begin(), text::kHarmonyEnds.end()});
    grammar::JsonNotation notation;
    if (is_harmony) notation.uncut = &uncut;
    if (format.kind != ResponseFormat::Kind::kJsonSchema) return grammar::any_json_object(definition_, notation);
    return grammar::parse_json_schema(format.texts[0], definition_, {.notation = notation});
  }

  Result<ExpressionPtr> parse_response_format(const ResponseFormat& format) {
    switch (format.kind) {
      case ResponseFormat::Kind::kJsonObject:
      case ResponseFormat::Kind::kJsonSchema: return parse_json_format(format);
      case ResponseFormat::Kind::kRegex: return grammar::parse_regex(format.texts[0]);
      case ResponseFormat::Kind::kGrammar: return grammar::parse_ebnf(format.texts[0], definition_);
      case ResponseFormat::Kind::kChoice: break;
    }
    std::vector<ExpressionPtr> choices;
    for (const std::string& text : format.texts) choices.push_back(literal(text));
    return choice(std::move(choices));
  }

  /// Adds a rule for the arguments of each tool.
  std::optional<openai::ApiError> read_tools() {
    const text::ToolCallSyntax& syntax = text::row_of(constraint_.calls->format).written.front();
    ArgumentGrammar arguments(syntax, definition_);
    for (const openai::Tool& tool : constraint_.calls->tools) {
      if (!syntax.can_write(tool.name)) {
        return bad_request("tools", "{}.name: calls of this model cannot have the name '{}'", tool.path, tool.name);
      }
      if (constraint_.calls->must_call || tool.is_strict) {
        if (auto refused = check_types(tool)) return refused;
      }
      if (tool.input) {
        auto input = arguments.of_input(*tool.input);
        if (input.has_error()) return bad_request("tools", "{}.format: {}", tool.path, input.error().message);
        arguments_.push_back(definition_.add(fmt::format("the input of {}", tool.name), std::move(*input)));
        continue;
      }
      const bool is_held = !tool.parameters.empty() && (tool.is_strict || enforcement_ == SchemaEnforcement::kAll);
      if (is_held) {
        const size_t rules = definition_.rules.size();
        // A function takes the arguments that it declares. Models invent others.
        const grammar::SchemaOptions options{.unsupported = tool.is_strict ? grammar::UnsupportedKeywords::kRefuse
                                                                           : grammar::UnsupportedKeywords::kIgnore,
                                             .only_declared = true};
        auto schema = arguments.of(tool, options);
        if (schema.has_value()) {
          arguments_.push_back(definition_.add(fmt::format("the arguments of {}", tool.name), std::move(*schema)));
          continue;
        }
        if (tool.is_strict) return bad_request("tools", "{}.parameters: {}", tool.path, schema.error().message);
        definition_.rules.resize(rules);
      }
      if (!any_arguments_) any_arguments_ = definition_.add("any arguments", arguments.any());
      arguments_.push_back(*any_arguments_);
    }
    return std::nullopt;
  }

  /// Returns the refusal of a schema with an unknown type, which no call could satisfy.
  static std::optional<openai::ApiError> check_types(const openai::Tool& tool) {
    if (tool.parameters.empty()) return std::nullopt;
    const auto checked = grammar::check_schema_types(tool.parameters);
    if (checked.has_value()) return std::nullopt;
    return bad_request("tools", "{}.parameters: {}", tool.path, checked.error().message);
  }

  ExpressionPtr calls() {
    const ToolCallConstraint& constraint = *constraint_.calls;
    const std::string_view tag = text::tool_call_start_tag(constraint.format);
    const bool allows_text = !constraint.must_call && !constraint_.response_format;
    ExpressionPtr calls = calls_after(allows_text ? tag : std::string_view());
    if (!allows_text) return calls;
    if (!tag.empty()) return until_tag({&tag, 1}, calls, true, text::tags_of_answers());
    // An output that begins like a call is one.
    CharSet begins = whitespace_chars();
    const text::ToolCallSyntax& syntax = text::row_of(constraint.format).written.front();
    const auto first = static_cast<char32_t>(syntax.is_list() ? syntax.list_open.front() : '{');
    begins.add(first, first);
    ExpressionPtr text =
        sequence({answer_part(begins.complement()), repeat(answer_part(CharSet(0, CharSet::kMaxCodePoint)), 0)});
    return sequence({optional_whitespace(), choice({std::move(calls), std::move(text), literal("")})});
  }

  /// Returns the calls, or what follows `tag` in them unless it is empty.
  ExpressionPtr calls_after(std::string_view tag) {
    std::vector<ExpressionPtr> ways;
    for (const text::ToolCallSyntax& syntax : text::row_of(constraint_.calls->format).written) {
      ways.push_back(calls_in_syntax(syntax, tag));
    }
    return choice(std::move(ways));
  }

  /// Returns the calls in one syntax, or what follows `tag` in them unless it is empty.
  ExpressionPtr calls_in_syntax(const text::ToolCallSyntax& syntax, std::string_view tag) {
    const ToolCallConstraint& constraint = *constraint_.calls;
    const std::string opening =
        std::string(syntax.section_open) + std::string(syntax.list_open) + std::string(syntax.call_open);
    const size_t skipped = tag.empty() ? 0 : opening.find(tag) + tag.size();
    std::vector<ExpressionPtr> tools;
    for (size_t i = 0; i < constraint.tools.size(); ++i) {
      ExpressionPtr name = literal(syntax.escaped_name(constraint.tools[i].name));
      tools.push_back(sequence({std::move(name), before_arguments(syntax, !tag.empty()), reference(arguments_[i])}));
    }
    std::vector<ExpressionPtr> parts;
    if (syntax.id_is_first) parts.push_back(call_id(syntax));
    parts.insert(parts.end(), {literal(syntax.before_name), choice(std::move(tools)),
                               literal(std::string(syntax.after_arguments) + std::string(syntax.call_close))});
    ExpressionPtr call = reference(definition_.add("a call", sequence(std::move(parts))));
    std::vector<ExpressionPtr> all{literal(opening.substr(skipped)), call};
    if (constraint.allow_parallel && !syntax.allows_one_call) {
      const std::string between = std::string(syntax.separator) + std::string(syntax.call_open);
      all.push_back(repeat(sequence({literal(between), call}), 0));
    }
    all.push_back(literal(std::string(syntax.list_close) + std::string(syntax.section_close)));
    return sequence(std::move(all));
  }

  /// Returns what stands between the name of a call and its arguments.
  ExpressionPtr before_arguments(const text::ToolCallSyntax& syntax, bool is_in_text) {
    // A header may continue in several ways after a recipient in free text.
    constexpr std::string_view kMessage = "<|message|>";
    if (is_in_text && syntax.before_arguments.ends_with(kMessage)) {
      return choice({literal(kMessage), literal(syntax.before_arguments),
                     literal(" <|channel|>commentary <|constrain|>json<|message|>"),
                     literal("<|channel|>commentary <|constrain|>json<|message|>"),
                     literal("<|channel|>commentary json<|message|>"), literal("<|channel|>commentary<|message|>")});
    }
    ExpressionPtr text = literal(syntax.before_arguments);
    const bool has_id = syntax.id != text::CallIdSyntax::kNone && !syntax.id_is_first;
    return has_id ? sequence({call_id(syntax), std::move(text)}) : text;
  }

  static ExpressionPtr call_id(const text::ToolCallSyntax& syntax) {
    CharSet chars(U'0', U'9');
    if (syntax.id == text::CallIdSyntax::kNumber) {
      return sequence({literal(syntax.id_open), repeat(one_of(std::move(chars)), 1, 4)});
    }
    chars.add(U'a', U'z');
    chars.add(U'A', U'Z');
    return sequence({literal(syntax.id_open), repeat(one_of(std::move(chars)), 9, 9)});
  }

  ExpressionPtr after_reasoning(ExpressionPtr root) {
    if (constraint_.reasoning == ReasoningMode::kNone) return root;
    const text::ReasoningRow& row = text::row_of(constraint_.reasoning_format);
    ExpressionPtr rest = sequence({literal(row.after_end), optional_whitespace(), root});
    std::vector<std::string_view> ends = {row.end};
    std::vector<ExpressionPtr> after = {rest};
    if (constraint_.calls && text::row_of(constraint_.calls->format).ends_reasoning) {
      // Calls may follow at once.
      ends.push_back(text::tool_call_start_tag(constraint_.calls->format));
      after.push_back(calls_after(ends.back()));
    }
    ExpressionPtr reasoning = until_tag(ends, after);
    if (constraint_.reasoning == ReasoningMode::kOpened) return reasoning;
    return choice({sequence({literal(row.start), std::move(reasoning)}), std::move(root)});
  }

  /// Returns content in the tags that the model's format has for it.
  ExpressionPtr tagged_content(ExpressionPtr content) const {
    if (constraint_.reasoning == ReasoningMode::kNone) return content;
    const text::ReasoningRow& row = text::row_of(constraint_.reasoning_format);
    if (row.content_open.empty()) return content;
    ExpressionPtr tagged = sequence({literal(row.content_open), content, literal(row.content_close)});
    // Without a close the format has no content outside of the tags.
    return row.content_close.empty() ? tagged : choice({std::move(tagged), std::move(content)});
  }

  const OutputConstraint& constraint_;
  const SchemaEnforcement enforcement_;
  Definition definition_;
  std::vector<grammar::RuleIndex> arguments_;  // by tool
  std::optional<grammar::RuleIndex> any_arguments_;
};

}  // namespace

ApiResult<Definition> build_grammar(const OutputConstraint& constraint, SchemaEnforcement enforcement) {
  return GrammarBuilder(constraint, enforcement).build();
}

}  // namespace millrace::server
