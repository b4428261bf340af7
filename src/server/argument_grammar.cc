#include "server/argument_grammar.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "base/json.h"
#include "base/utf8.h"
#include "grammar/char_set.h"
#include "grammar/json_rules.h"
#include "grammar/lark.h"
#include "grammar/regex_parser.h"
#include "grammar/without_tag.h"

namespace millrace::server {
namespace {

using grammar::CharSet;
using grammar::choice;
using grammar::ExpressionPtr;
using grammar::literal;
using grammar::one_of;
using grammar::optional;
using grammar::reference;
using grammar::repeat;
using grammar::SchemaOptions;
using grammar::sequence;

/// Limits the members and references that are followed into one value.
constexpr int kMaxLiteralDepth = 12;
/// Limits the values of one grammar whose schemas are followed.
constexpr size_t kMaxLiterals = 4096;

bool is_required(JsonValue schema, std::string_view key) {
  JsonArray required;
  if (!schema["required"].get(required)) return false;
  return std::ranges::any_of(required, [key](JsonValue name) {
    std::string_view word;
    return name.get(word) && word == key;
  });
}

/// Returns the schema of a property together with the definitions that its references need.
std::string with_definitions(JsonValue property, JsonValue root) {
  std::string own = to_json(property);
  for (const char* name : {"$defs", "definitions"}) {
    JsonValue shared = root[name];
    if (!own.starts_with("{") || shared.is_missing()) continue;
    own.insert(1, fmt::format("\"{}\":{}{}", name, to_json(shared), own == "{}" ? "" : ","));
  }
  return own;
}

CharSet key_chars() {
  CharSet chars(U'a', U'z');
  chars.add(U'A', U'Z');
  chars.add(U'0', U'9');
  chars.add(U'_', U'_');
  return chars;
}

ExpressionPtr literal_text(std::string_view text) {
  return literal(std::string(text));
}

}  // namespace

ExpressionPtr until_tag(std::string_view tag, ExpressionPtr then, bool may_end, grammar::Definition& definition) {
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

Result<ExpressionPtr> ArgumentGrammar::of(const openai::Tool& tool, const SchemaOptions& options) {
  const auto document = JsonDocument::parse(tool.parameters);
  if (document.has_error() || !document->root().is_object()) {
    return make_error(ErrorCode::kInvalidArgument, "it is no JSON object");
  }
  const bool is_json =
      syntax_.notation == text::ArgumentNotation::kJson || syntax_.notation == text::ArgumentNotation::kJsonCall;
  if (is_json) return grammar::parse_json_schema(tool.parameters, definition_, options);
  // What JSON could not enforce is refused in every notation.
  grammar::Definition as_json;
  const auto read = grammar::parse_json_schema(tool.parameters, as_json, options);
  if (read.has_error()) return read.error();
  if (syntax_.notation == text::ArgumentNotation::kParameters) return parameters(tool, document->root(), options);
  return literal_object({document->root(), document->root()}, true);
}

Result<ExpressionPtr> ArgumentGrammar::of_input(const openai::InputGrammar& input) {
  const auto read = [&input](grammar::Definition& definition) {
    return input.syntax == openai::InputGrammar::Syntax::kLark ? grammar::parse_lark(input.definition, definition)
                                                               : grammar::parse_regex(input.definition);
  };
  const bool is_literal = syntax_.notation == text::ArgumentNotation::kLiterals;
  const bool has_tags = syntax_.notation == text::ArgumentNotation::kParameters;
  grammar::Definition source;
  auto root = read(source);
  if (root.has_error()) return root.error();
  source.root = *root;
  if (has_tags || (is_literal && !syntax_.dialect->quote.empty())) return unescaped_input(source);
  grammar::JsonRules json(definition_);
  ExpressionPtr text = json.string_of(source);
  if (is_literal) {
    return sequence({literal({syntax_.dialect->open}), key("input", true), text, literal({syntax_.dialect->close})});
  }
  return sequence({literal("{"), json.space(), literal("\"input\":"), json.space(), text, json.space(), literal("}")});
}

/// Returns an input that ends at the first tag or quote, so that none may stand in it.
Result<ExpressionPtr> ArgumentGrammar::unescaped_input(const grammar::Definition& source) {
  const bool has_tags = syntax_.notation == text::ArgumentNotation::kParameters;
  try {
    if (has_tags) {
      const text::ParameterTags& tags = *syntax_.tags;
      std::string_view tag = value_end().first;
      tag.remove_prefix(tag.find_first_not_of('\n'));
      ExpressionPtr text = grammar::without_tag(source, tag, definition_);
      return sequence({literal(fmt::format("{}input{}{}", tags.open, tags.key_end, tags.value_open)), std::move(text),
                       literal_text(tags.value_end)});
    }
    const std::string quote(syntax_.dialect->quote);
    ExpressionPtr text = grammar::without_tag(source, quote, definition_);
    return sequence({literal({syntax_.dialect->open}), key("input", true), literal(quote), std::move(text),
                     literal(quote), literal({syntax_.dialect->close})});
  } catch (const ErrorException& failure) {
    return failure.error();
  }
}

ExpressionPtr ArgumentGrammar::any() {
  switch (syntax_.notation) {
    case text::ArgumentNotation::kParameters: return any_parameters();
    case text::ArgumentNotation::kLiterals:
      return sequence({literal({syntax_.dialect->open}), any_members(true), literal({syntax_.dialect->close})});
    default: return grammar::any_json_object(definition_);
  }
}

Result<ExpressionPtr> ArgumentGrammar::parameters(const openai::Tool&, JsonValue root, const SchemaOptions& options) {
  std::vector<ExpressionPtr> parts;
  JsonObject properties;
  if (!root["properties"].get(properties)) return literal("");
  for (const auto& [key, property] : properties) {
    if (key.find('\n') != std::string_view::npos || key.find(syntax_.tags->key_end) != std::string_view::npos) {
      return make_error(ErrorCode::kInvalidArgument, "calls of this model cannot have a parameter '{}'", key);
    }
    auto written = parameter(key, property, root, options);
    if (written.has_error()) return written.error();
    parts.push_back(is_required(root, key) ? *written : optional(*written));
  }
  return sequence(std::move(parts));
}

Result<ExpressionPtr> ArgumentGrammar::parameter(std::string_view key, JsonValue property, JsonValue root,
                                                 const SchemaOptions& options) {
  const text::ParameterTags& tags = *syntax_.tags;
  const text::ValueTypes types = text::types_of_schema(property, root);
  const std::string begin = fmt::format("{}{}{}", tags.open, key, tags.key_end);
  ExpressionPtr text = sequence({literal(begin + std::string(tags.value_open)), text_value(property)});
  const bool is_text = types.text && (!types.has_others_than_text() || !tags.has_string_attribute);
  if (is_text) return text;
  auto json = grammar::parse_json_schema(with_definitions(property, root), definition_, options);
  if (json.has_error()) return json.error();
  std::string opening = begin + std::string(tags.value_open);
  if (tags.has_string_attribute) opening = begin + " string=\"false\">";
  ExpressionPtr value = sequence({literal(std::move(opening)), *json, literal_text(tags.value_end)});
  return types.text ? choice({std::move(text), std::move(value)}) : value;
}

std::pair<std::string_view, std::string_view> ArgumentGrammar::value_end() const {
  const std::string_view end = syntax_.tags->value_end;
  const size_t size = end.find_last_not_of('\n') + 1;
  return {end.substr(0, size), end.substr(size)};
}

/// Returns the expression of an unquoted text and what ends it. Only an "enum" of the schema constrains the text.
ExpressionPtr ArgumentGrammar::text_value(JsonValue property) {
  std::vector<ExpressionPtr> choices;
  JsonArray values;
  if (property["enum"].get(values)) {
    for (const JsonValue value : values) {
      std::string_view word;
      choices.push_back(literal(value.get(word) ? std::string(word) : to_json(value)));
    }
  }
  const auto [tag, rest] = value_end();
  if (choices.empty()) return until_tag(tag, literal_text(rest), false, definition_);
  return sequence({choice(std::move(choices)), literal_text(syntax_.tags->value_end)});
}

ExpressionPtr ArgumentGrammar::any_parameters() {
  const text::ParameterTags& tags = *syntax_.tags;
  CharSet bounds(static_cast<char32_t>(tags.key_end.front()));
  bounds.add(U'\n', U'\n');
  const auto [tag, rest] = value_end();
  std::vector<ExpressionPtr> openings = {literal_text(tags.value_open)};
  if (tags.has_string_attribute) openings.push_back(literal(" string=\"false\">"));
  return repeat(
      sequence({literal_text(tags.open), repeat(one_of(bounds.complement()), 1, 100), literal_text(tags.key_end),
                choice(std::move(openings)), until_tag(tag, literal_text(rest), false, definition_)}),
      0);
}

ExpressionPtr ArgumentGrammar::json_of(Schema schema, std::string_view type) {
  auto json = grammar::parse_json_schema(with_definitions(schema.value, schema.root), definition_,
                                         {.unsupported = grammar::UnsupportedKeywords::kIgnore, .only_declared = true});
  if (json.has_value()) return *json;
  return *grammar::parse_json_schema(fmt::format(R"({{"type":"{}"}})", type), definition_);
}

/// Returns a member's key and what follows it. Only the keys of nested objects of Python are strings.
ExpressionPtr ArgumentGrammar::key(std::string_view name, bool is_top) const {
  if (is_top || !syntax_.dialect->quote.empty()) return literal(std::string(name) + syntax_.dialect->key_end);
  std::string quoted;
  append_json_string(quoted, name);
  return literal(quoted + ": ");
}

ExpressionPtr ArgumentGrammar::literal_object(Schema schema, bool is_top) {
  const text::LiteralDialect& dialect = *syntax_.dialect;
  JsonObject properties;
  ExpressionPtr members;
  if (!schema.value["properties"].get(properties) || schema.depth > kMaxLiteralDepth) {
    members = any_members(is_top);
  } else {
    std::vector<JsonMember> all(properties.begin(), properties.end());
    if (dialect.sorts_keys) std::ranges::sort(all, {}, &JsonMember::key);
    // The members that follow a member, and those that begin the object, from the last to the first.
    ExpressionPtr after = literal("");
    ExpressionPtr first = literal("");
    for (size_t i = all.size(); i-- > 0;) {
      ExpressionPtr member = reference(definition_.add(
          "a member",
          sequence({key(all[i].key, is_top), literal_value({all[i].value, schema.root, schema.depth + 1})})));
      ExpressionPtr with_more = sequence({member, after});
      ExpressionPtr separated = sequence({literal_text(dialect.separator), with_more});
      const bool required = is_required(schema.value, all[i].key);
      first = reference(definition_.add("the first members", required ? with_more : choice({with_more, first})));
      after = reference(definition_.add("more members", required ? separated : choice({separated, after})));
    }
    members = first;
  }
  const char open = is_top ? dialect.open : '{';
  const char close = is_top ? dialect.close : '}';
  return sequence({literal({open}), std::move(members), literal({close})});
}

ExpressionPtr ArgumentGrammar::constant(JsonValue value) {
  const text::LiteralDialect& dialect = *syntax_.dialect;
  std::string_view text;
  if (value.get(text) && !dialect.quote.empty()) {
    return literal(std::string(dialect.quote) + std::string(text) + std::string(dialect.quote));
  }
  if (value.is_true()) return literal_text(dialect.true_word);
  if (value.is_false()) return literal_text(dialect.false_word);
  if (value.is_null()) return literal_text(dialect.null_word);
  return literal(to_json(value));
}

ExpressionPtr ArgumentGrammar::literal_value(Schema schema) {
  if (++schema.depth > kMaxLiteralDepth || ++literal_count_ > kMaxLiterals) return any_literal();
  std::string_view word;
  if (schema.value["$ref"].get(word)) {
    const JsonValue target = word.starts_with('#') ? schema.root.at_pointer(word.substr(1)) : JsonValue();
    return target.is_object() ? literal_value({target, schema.root, schema.depth}) : any_literal();
  }
  if (!schema.value["const"].is_missing()) return constant(schema.value["const"]);
  std::vector<ExpressionPtr> ways;
  JsonArray array;
  if (schema.value["enum"].get(array)) {
    for (const JsonValue value : array) ways.push_back(constant(value));
    return choice(std::move(ways));
  }
  for (const char* name : {"anyOf", "oneOf"}) {
    if (!schema.value[name].get(array)) continue;
    for (const JsonValue way : array) ways.push_back(literal_value({way, schema.root, schema.depth}));
    return choice(std::move(ways));
  }
  if (schema.value["nullable"].is_true()) ways.push_back(literal_text(syntax_.dialect->null_word));
  if (schema.value["type"].get(word)) {
    ways.push_back(literal_of_type(word, schema));
  } else if (schema.value["type"].get(array)) {
    for (const JsonValue type : array) {
      if (type.get(word)) ways.push_back(literal_of_type(word, schema));
    }
  } else if (schema.value["properties"].is_object()) {
    ways.push_back(literal_object(schema, false));
  }
  return ways.empty() ? any_literal() : choice(std::move(ways));
}

ExpressionPtr ArgumentGrammar::literal_of_type(std::string_view type, Schema schema) {
  const text::LiteralDialect& dialect = *syntax_.dialect;
  if (type == "object") return literal_object(schema, false);
  if (type == "array") return literal_list(schema);
  if (type == "boolean") return choice({literal_text(dialect.true_word), literal_text(dialect.false_word)});
  if (type == "null") return literal_text(dialect.null_word);
  if (type == "string") return literal_string(schema);
  const bool is_alone = schema.value["type"].is_string();
  if (is_alone && (type == "integer" || type == "number")) return json_of(schema, type);
  return *grammar::parse_json_schema(R"({"type":"number"})", definition_);
}

ExpressionPtr ArgumentGrammar::literal_string(Schema schema) {
  const std::string_view quote = syntax_.dialect->quote;
  if (!quote.empty()) return sequence({literal_text(quote), until_tag(quote, literal(""), false, definition_)});
  if (schema.value["type"].is_string()) return json_of(schema, "string");
  return *grammar::parse_json_schema(R"({"type":"string"})", definition_);
}

ExpressionPtr ArgumentGrammar::literal_list(Schema schema) {
  const JsonValue items = schema.value["items"];
  ExpressionPtr item = reference(definition_.add(
      "an item", items.is_object() ? literal_value({items, schema.root, schema.depth}) : any_literal()));
  uint64_t min = 0;
  uint64_t max = 0;
  (void)schema.value["minItems"].get(min);
  const bool has_max = schema.value["maxItems"].get(max);
  if (has_max && max == 0) return literal("[]");
  constexpr uint64_t kMaxCount = 1000;
  const auto more_min = static_cast<uint32_t>(std::min(min, kMaxCount) > 0 ? std::min(min, kMaxCount) - 1 : 0);
  const auto more_max = has_max ? std::optional(static_cast<uint32_t>(std::min(max, kMaxCount) - 1)) : std::nullopt;
  ExpressionPtr filled =
      sequence({item, repeat(sequence({literal_text(syntax_.dialect->separator), item}), more_min, more_max)});
  return sequence({literal("["), min > 0 ? filled : optional(filled), literal("]")});
}

ExpressionPtr ArgumentGrammar::any_members(bool is_top) {
  const text::LiteralDialect& dialect = *syntax_.dialect;
  const bool is_quoted = !is_top && dialect.quote.empty();
  ExpressionPtr name = is_quoted ? *grammar::parse_json_schema(R"({"type":"string"})", definition_)
                                 : repeat(one_of(key_chars()), 1, 100);
  ExpressionPtr member = sequence({name, is_quoted ? literal(": ") : literal({dialect.key_end}), any_literal()});
  return optional(sequence({member, repeat(sequence({literal_text(dialect.separator), member}), 0)}));
}

ExpressionPtr ArgumentGrammar::any_literal() {
  if (any_literal_) return reference(*any_literal_);
  any_literal_ = definition_.add("any value");
  const grammar::RuleIndex rule = *any_literal_;
  const text::LiteralDialect& dialect = *syntax_.dialect;
  ExpressionPtr list = sequence(
      {literal("["),
       optional(sequence({reference(rule), repeat(sequence({literal_text(dialect.separator), reference(rule)}), 0)})),
       literal("]")});
  ExpressionPtr object = sequence({literal("{"), any_members(false), literal("}")});
  definition_.rules[rule].expression =
      choice({literal_string({}), *grammar::parse_json_schema(R"({"type":"number"})", definition_),
              literal_text(dialect.true_word), literal_text(dialect.false_word), literal_text(dialect.null_word),
              std::move(list), std::move(object)});
  return reference(rule);
}

}  // namespace millrace::server
