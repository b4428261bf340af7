#include "server/output_constraint.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/json_value.h"
#include "base/utf8.h"
#include "grammar/char_set.h"
#include "grammar/ebnf.h"
#include "grammar/json_schema.h"
#include "grammar/regex_parser.h"
#include "text/tool_calls/output_parser.h"

namespace millrace::server {
namespace {

using grammar::CharSet;
using grammar::choice;
using grammar::Definition;
using grammar::ExpressionPtr;
using grammar::literal;
using grammar::one_of;
using grammar::optional;
using grammar::reference;
using grammar::repeat;
using grammar::sequence;
using openai::ApiResult;
using openai::bad_request;
using openai::ResponseFormat;

CharSet whitespace_chars() {
  CharSet set(U' ');
  set.add(U'\t', U'\n');
  set.add(U'\r', U'\r');
  return set;
}

/// Returns the space that a model may put between the parts of an answer.
ExpressionPtr optional_whitespace() {
  return repeat(one_of(whitespace_chars()), 0, 8);
}

/// Returns any text up to the first `tag`, the tag, and `then`; with `may_end` also any text without the tag. Adds one
/// rule per matched part of the tag, whose first character must occur only once in it.
ExpressionPtr until_tag(std::string_view tag, ExpressionPtr then, bool may_end, Definition& definition) {
  std::vector<char32_t> chars;
  for (size_t at = 0; at < tag.size();) {
    const DecodedUtf8 step = decode_utf8(tag.substr(at));
    chars.push_back(step.code_point);
    at += step.length;
  }
  std::vector<grammar::RuleIndex> matched;  // [characters of the tag that have matched]
  for (size_t i = 0; i < chars.size(); ++i) matched.push_back(definition.add(fmt::format("the text before {}", tag)));
  const char32_t first = chars[0];
  for (size_t i = 0; i < chars.size(); ++i) {
    const char32_t next = chars[i];
    const bool is_last = i + 1 == chars.size();
    std::vector<ExpressionPtr> ways;
    ways.push_back(sequence({one_of(CharSet(next)), is_last ? then : reference(matched[i + 1])}));
    if (next != first) ways.push_back(sequence({one_of(CharSet(first)), reference(matched[1])}));
    CharSet others(0, CharSet::kMaxCodePoint);
    others = others.without(CharSet(first)).without(CharSet(next));
    ways.push_back(sequence({one_of(std::move(others)), reference(matched[0])}));
    if (may_end) ways.push_back(literal(""));
    definition.rules[matched[i]].expression = choice(std::move(ways));
  }
  return reference(matched[0]);
}

/// Ends the value of a parameter.
constexpr std::string_view kParameterClose = "\n</parameter>";

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
      root = root == nullptr ? *format : choice({*format, std::move(root)});
    }
    definition_.root = after_reasoning(std::move(root));
    definition_.prefix = constraint_.prefix;
    return std::move(definition_);
  }

 private:
  Result<ExpressionPtr> parse_response_format(const ResponseFormat& format) {
    switch (format.kind) {
      case ResponseFormat::Kind::kJsonObject: return grammar::any_json_object(definition_);
      case ResponseFormat::Kind::kJsonSchema: return grammar::parse_json_schema(format.texts[0], definition_);
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
    const text::ToolCallSyntax& syntax = text::tool_call_syntaxes(constraint_.calls->format).front();
    const bool are_json = syntax.arguments == text::ToolCallSyntax::Arguments::kJson;
    for (const openai::Tool& tool : constraint_.calls->tools) {
      const bool is_held = !tool.parameters.empty() && (tool.is_strict || enforcement_ == SchemaEnforcement::kAll);
      if (is_held) {
        const size_t rules = definition_.rules.size();
        // A function takes the arguments that it declares. Models invent others.
        const grammar::SchemaOptions options{.unsupported = tool.is_strict ? grammar::UnsupportedKeywords::kRefuse
                                                                           : grammar::UnsupportedKeywords::kIgnore,
                                             .only_declared_members = true};
        auto schema =
            are_json ? grammar::parse_json_schema(tool.parameters, definition_, options) : parameters_of(tool, options);
        if (schema.has_value()) {
          arguments_.push_back(definition_.add(fmt::format("the arguments of {}", tool.name), std::move(*schema)));
          continue;
        }
        if (tool.is_strict) return bad_request("tools", "{}.parameters: {}", tool.path, schema.error().message);
        definition_.rules.resize(rules);
      }
      if (!any_arguments_) {
        ExpressionPtr any = are_json ? grammar::any_json_object(definition_) : any_parameters();
        any_arguments_ = definition_.add("any arguments", std::move(any));
      }
      arguments_.push_back(*any_arguments_);
    }
    return std::nullopt;
  }

  /// Returns the parameters of the schema's properties, in their order. The schema must be supported as JSON too.
  Result<ExpressionPtr> parameters_of(const openai::Tool& tool, const grammar::SchemaOptions& options) {
    const auto document = JsonDocument::parse(tool.parameters);
    JsonObject schema;
    if (document.has_error() || !document->root().get(schema)) {
      return make_error(ErrorCode::kInvalidArgument, "it is no JSON object");
    }
    Definition as_json;
    const auto read = grammar::parse_json_schema(tool.parameters, as_json, options);
    if (read.has_error()) return read.error();
    text::ParameterTypes types;
    types.add(tool.name, tool.parameters);
    std::vector<ExpressionPtr> parts;
    JsonObject properties;
    if (!schema["properties"].get(properties)) return literal("");
    for (const auto& [key, property] : properties) {
      if (key.find_first_of(">\n") != std::string_view::npos) {
        return make_error(ErrorCode::kInvalidArgument, "calls of this model cannot have a parameter '{}'", key);
      }
      const bool is_text = types.of(tool.name, std::string(key)) != text::ParameterTypes::Type::kJson;
      auto value = is_text ? Result<ExpressionPtr>(text_value(property)) : json_value(schema, property, options);
      if (value.has_error()) return value.error();
      ExpressionPtr parameter = sequence({literal(fmt::format("{}{}>\n", text::kParameterOpen, key)), *value});
      parts.push_back(is_required(schema, key) ? parameter : optional(parameter));
    }
    return sequence(std::move(parts));
  }

  static bool is_required(JsonObject schema, std::string_view key) {
    JsonArray required;
    if (!schema["required"].get(required)) return false;
    return std::ranges::any_of(required, [key](JsonValue name) {
      std::string_view word;
      return name.get(word) && word == key;
    });
  }

  /// Returns an unquoted text and what ends it. Only an "enum" of its schema constrains it.
  ExpressionPtr text_value(JsonValue schema) {
    std::vector<ExpressionPtr> choices;
    JsonArray values;
    if (schema["enum"].get(values)) {
      for (const JsonValue value : values) {
        std::string_view word;
        choices.push_back(literal(value.get(word) ? std::string(word) : to_json(value)));
      }
    }
    if (choices.empty()) return until_tag(kParameterClose, literal("\n"), false, definition_);
    return sequence({choice(std::move(choices)), literal(fmt::format("{}\n", kParameterClose))});
  }

  Result<ExpressionPtr> json_value(JsonObject schema, JsonValue property, const grammar::SchemaOptions& options) {
    std::string own = to_json(property);
    for (const char* name : {"$defs", "definitions"}) {
      JsonValue shared;
      if (!own.starts_with("{") || !schema[name].get(shared)) continue;
      own.insert(1, fmt::format("\"{}\":{}{}", name, to_json(shared), own == "{}" ? "" : ","));
    }
    auto value = grammar::parse_json_schema(own, definition_, options);
    if (value.has_error()) return value.error();
    return sequence({*value, literal(fmt::format("{}\n", kParameterClose))});
  }

  ExpressionPtr any_parameters() {
    CharSet names(U'>');
    names.add(U'\n', U'\n');
    return repeat(sequence({literal(std::string(text::kParameterOpen)), repeat(one_of(names.complement()), 1, 100),
                            literal(">\n"), until_tag(kParameterClose, literal("\n"), false, definition_)}),
                  0);
  }

  ExpressionPtr calls() {
    const ToolCallConstraint& constraint = *constraint_.calls;
    const std::string_view tag = text::tool_call_start_tag(constraint.format);
    const bool allows_text = !constraint.must_call && !constraint_.response_format;
    std::vector<ExpressionPtr> ways;
    for (const text::ToolCallSyntax& syntax : text::tool_call_syntaxes(constraint.format)) {
      ways.push_back(calls_in_syntax(syntax, allows_text ? tag.size() : 0));
    }
    ExpressionPtr calls = choice(std::move(ways));
    if (!allows_text) return calls;
    if (!tag.empty()) return until_tag(tag, std::move(calls), true, definition_);
    // An answer that begins with a brace is a call.
    CharSet begins = whitespace_chars();
    begins.add(U'{', U'{');
    ExpressionPtr text = sequence({one_of(begins.complement()), repeat(one_of(CharSet(0, CharSet::kMaxCodePoint)), 0)});
    return sequence({optional_whitespace(), choice({std::move(calls), std::move(text), literal("")})});
  }

  /// Returns the calls in one syntax, without their first `skipped_bytes` bytes.
  ExpressionPtr calls_in_syntax(const text::ToolCallSyntax& syntax, size_t skipped_bytes) {
    const ToolCallConstraint& constraint = *constraint_.calls;
    std::vector<ExpressionPtr> tools;
    for (size_t i = 0; i < constraint.tools.size(); ++i) {
      const std::string head = syntax.escaped_name(constraint.tools[i].name) + std::string(syntax.before_arguments);
      tools.push_back(sequence({literal(head), reference(arguments_[i])}));
    }
    ExpressionPtr call = reference(
        definition_.add("a call", sequence({literal(std::string(syntax.before_name)), choice(std::move(tools)),
                                            literal(std::string(syntax.after_arguments))})));
    std::vector<ExpressionPtr> parts{literal(std::string(syntax.open.substr(skipped_bytes))), call};
    if (constraint.allow_parallel) parts.push_back(repeat(sequence({literal(std::string(syntax.separator)), call}), 0));
    parts.push_back(literal(std::string(syntax.close)));
    return sequence(std::move(parts));
  }

  ExpressionPtr after_reasoning(ExpressionPtr root) {
    if (constraint_.reasoning == ReasoningMode::kNone) return root;
    ExpressionPtr reasoning =
        until_tag(text::kReasoningEnd, sequence({optional_whitespace(), root}), false, definition_);
    if (constraint_.reasoning == ReasoningMode::kOpened) return reasoning;
    return choice({sequence({literal(std::string(text::kReasoningStart)), std::move(reasoning)}), std::move(root)});
  }

  const OutputConstraint& constraint_;
  const SchemaEnforcement enforcement_;
  Definition definition_;
  std::vector<grammar::RuleIndex> arguments_;  // by tool
  std::optional<grammar::RuleIndex> any_arguments_;
};

void append_sized(std::string& key, std::string_view text) {
  key += std::to_string(text.size());
  key += ':';
  key += text;
}

}  // namespace

std::string OutputConstraint::key() const {
  std::string key{static_cast<char>('0' + static_cast<int>(reasoning))};
  append_sized(key, prefix);
  if (response_format) {
    key += static_cast<char>('a' + static_cast<int>(response_format->kind));
    for (const std::string& text : response_format->texts) append_sized(key, text);
  }
  if (!calls) return key;
  key += fmt::format("/{},{},{}", static_cast<int>(calls->format), calls->must_call, calls->allow_parallel);
  for (const openai::Tool& tool : calls->tools) {
    append_sized(key, tool.name);
    append_sized(key, tool.parameters);
    key += tool.is_strict ? '!' : '?';
  }
  return key;
}

ApiResult<Definition> build_grammar(const OutputConstraint& constraint, SchemaEnforcement enforcement) {
  return GrammarBuilder(constraint, enforcement).build();
}

}  // namespace millrace::server
