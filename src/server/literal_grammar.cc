#include "server/literal_grammar.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "base/json.h"
#include "grammar/char_set.h"
#include "grammar/json_rules.h"
#include "grammar/json_schema.h"
#include "grammar/until_tag.h"
#include "grammar/without_tags.h"
#include "server/tool_schema.h"
#include "text/tool_calls/literal_arguments.h"

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
using grammar::sequence;
using grammar::until_tag;

/// Limits the members and references that are followed into one value.
constexpr int kMaxDepth = 12;
/// Limits the values of one grammar whose schemas are followed.
constexpr size_t kMaxValues = 4096;

CharSet key_chars() {
  CharSet chars(U'a', U'z');
  chars.add(U'A', U'Z');
  chars.add(U'0', U'9');
  chars.add(U'_', U'_');
  return chars;
}

}  // namespace

Result<ExpressionPtr> LiteralGrammar::of(JsonValue schema) {
  refused_.reset();
  const size_t rule_count = definition_.rules.size();
  ExpressionPtr arguments = object(followed({schema, schema}), true);
  if (refused_) {
    // The caller gives up the rules of a schema that is refused.
    if (any_value_ && *any_value_ >= rule_count) any_value_.reset();
    return *refused_;
  }
  return arguments;
}

/// Returns the schema that a reference, or an "allOf" of one part, leads to.
LiteralGrammar::Schema LiteralGrammar::followed(Schema schema) {
  for (; schema.depth <= kMaxDepth; ++schema.depth) {
    std::string_view word;
    JsonArray parts;
    if (schema.value["$ref"].get(word)) {
      schema.value = word.starts_with('#') ? schema.root.at_pointer(word.substr(1)) : JsonValue();
    } else if (schema.value["allOf"].get(parts) && parts.size() == 1) {
      schema.value = parts.at(0);
    } else {
      break;
    }
  }
  return schema;
}

Result<ExpressionPtr> LiteralGrammar::of_input(const grammar::Definition& source) {
  const std::string_view quote = dialect_.quote;
  ExpressionPtr text;
  if (quote.empty()) {
    text = grammar::JsonRules(definition_).string_of(source);
  } else {
    auto unquoted = grammar::without_tags(source, {&quote, 1}, definition_);
    if (unquoted.has_error()) return unquoted.error();
    text = sequence({literal(quote), std::move(*unquoted), literal(quote)});
  }
  return in_brackets(sequence({key("input", true), std::move(text)}), true);
}

ExpressionPtr LiteralGrammar::any() {
  return in_brackets(any_members(true), true);
}

ExpressionPtr LiteralGrammar::in_brackets(ExpressionPtr members, bool is_top) const {
  const char open = is_top ? dialect_.open : '{';
  const char close = is_top ? dialect_.close : '}';
  return sequence({literal(std::string(1, open)), std::move(members), literal(std::string(1, close))});
}

ExpressionPtr LiteralGrammar::json_of(Schema schema, std::string_view type) {
  auto json = grammar::parse_json_schema(with_definitions(schema.value, schema.root), definition_,
                                         {.unsupported = grammar::UnsupportedKeywords::kIgnore, .only_declared = true});
  if (json.has_value()) return *json;
  return *grammar::parse_json_schema(fmt::format(R"({{"type":"{}"}})", type), definition_);
}

/// Returns a member's key and what follows it. The keys of nested objects of Python are strings, and elsewhere those
/// that the parser would not read otherwise.
ExpressionPtr LiteralGrammar::key(std::string_view name, bool is_top) {
  const bool is_python = dialect_.quote.empty();
  if (is_python && !is_top) {
    std::string text;
    append_json_string(text, name);
    return literal(text + ": ");
  }
  if (text::is_bare_key(name)) return literal(std::string(name) + dialect_.key_end);
  if (is_python) refuse("a parameter", name);
  return sequence({quoted(name), literal(std::string(1, dialect_.key_end))});
}

ExpressionPtr LiteralGrammar::quoted(std::string_view text) {
  if (text.find(dialect_.quote) != std::string_view::npos) refuse("the value", text);
  return literal(fmt::format("{}{}{}", dialect_.quote, text, dialect_.quote));
}

void LiteralGrammar::refuse(std::string_view what, std::string_view text) {
  if (refused_) return;
  refused_ =
      make_error(ErrorCode::kInvalidArgument, "calls of this model cannot have {} '{}'", what, text.substr(0, 64));
}

ExpressionPtr LiteralGrammar::object(Schema schema, bool is_top) {
  JsonObject properties;
  ExpressionPtr members;
  if (!schema.value["properties"].get(properties) || schema.depth > kMaxDepth) {
    members = any_members(is_top);
  } else {
    std::vector<JsonMember> all(properties.begin(), properties.end());
    if (dialect_.sorts_keys) std::ranges::sort(all, {}, &JsonMember::key);
    // The members that follow a member, and those that begin the object, from the last to the first.
    ExpressionPtr after = literal("");
    ExpressionPtr first = literal("");
    for (size_t i = all.size(); i-- > 0;) {
      ExpressionPtr member = reference(definition_.add(
          "a member", sequence({key(all[i].key, is_top), value_of({all[i].value, schema.root, schema.depth + 1})})));
      ExpressionPtr with_more = sequence({member, after});
      ExpressionPtr separated = sequence({literal(dialect_.separator), with_more});
      const bool required = is_required(schema.value, all[i].key);
      first = reference(definition_.add("the first members", required ? with_more : choice({with_more, first})));
      after = reference(definition_.add("more members", required ? separated : choice({separated, after})));
    }
    members = first;
  }
  return in_brackets(std::move(members), is_top);
}

ExpressionPtr LiteralGrammar::constant(JsonValue value) {
  std::string_view text;
  if (value.get(text) && !dialect_.quote.empty()) return quoted(text);
  if (value.is_true()) return literal(dialect_.true_word);
  if (value.is_false()) return literal(dialect_.false_word);
  if (value.is_null()) return literal(dialect_.null_word);
  return literal(to_json(value));
}

ExpressionPtr LiteralGrammar::value_of(Schema schema) {
  schema = followed(schema);
  if (++schema.depth > kMaxDepth || ++value_count_ > kMaxValues) return any_value();
  std::string_view word;
  if (!schema.value["const"].is_missing()) return constant(schema.value["const"]);
  std::vector<ExpressionPtr> ways;
  JsonArray array;
  if (schema.value["enum"].get(array)) {
    for (const JsonValue value : array) ways.push_back(constant(value));
    return choice(std::move(ways));
  }
  for (const char* name : {"anyOf", "oneOf"}) {
    if (!schema.value[name].get(array)) continue;
    for (const JsonValue way : array) ways.push_back(value_of({way, schema.root, schema.depth}));
    return choice(std::move(ways));
  }
  if (schema.value["nullable"].is_true()) ways.push_back(literal(dialect_.null_word));
  if (schema.value["type"].get(word)) {
    ways.push_back(value_of_type(word, schema));
  } else if (schema.value["type"].get(array)) {
    for (const JsonValue type : array) {
      if (type.get(word)) ways.push_back(value_of_type(word, schema));
    }
  } else if (schema.value["properties"].is_object()) {
    ways.push_back(object(schema, false));
  }
  return ways.empty() ? any_value() : choice(std::move(ways));
}

ExpressionPtr LiteralGrammar::value_of_type(std::string_view type, Schema schema) {
  if (type == "object") return object(schema, false);
  if (type == "array") return list(schema);
  if (type == "boolean") return choice({literal(dialect_.true_word), literal(dialect_.false_word)});
  if (type == "null") return literal(dialect_.null_word);
  if (type == "string") return string(schema);
  const bool is_alone = schema.value["type"].is_string();
  if (is_alone && (type == "integer" || type == "number")) return json_of(schema, type);
  return *grammar::parse_json_schema(R"({"type":"number"})", definition_);
}

ExpressionPtr LiteralGrammar::string(Schema schema) {
  const std::string_view quote = dialect_.quote;
  if (!quote.empty()) {
    if (ExpressionPtr text = text_of(schema)) return sequence({literal(quote), std::move(text), literal(quote)});
    return sequence({literal(quote), until_tag({&quote, 1}, literal(""))});
  }
  if (schema.value["type"].is_string()) return json_of(schema, "string");
  return *grammar::parse_json_schema(R"({"type":"string"})", definition_);
}

/// Returns the characters of strings that have conditions; nothing where there are none, or that take too many states.
ExpressionPtr LiteralGrammar::text_of(Schema schema) {
  constexpr std::array kConditions = {"minLength", "maxLength", "pattern", "format"};
  const bool is_free = std::ranges::all_of(kConditions, [&](auto* word) { return schema.value[word].is_missing(); });
  if (is_free) return nullptr;
  grammar::Definition source;
  std::vector<grammar::SchemaMember> members;
  const std::string object = fmt::format(R"({{"properties":{{"text":{}}}}})", to_json(schema.value));
  const auto read = grammar::parse_member_schema(
      object, source, {.unsupported = grammar::UnsupportedKeywords::kIgnore, .only_declared = true}, "x", members);
  if (read.has_error() || members.empty() || members[0].text == nullptr || members[0].is_any_text) return nullptr;
  return quoted_texts_->text(source, members[0].text);
}

ExpressionPtr LiteralGrammar::list(Schema schema) {
  const JsonValue items = schema.value["items"];
  ExpressionPtr item = reference(
      definition_.add("an item", items.is_object() ? value_of({items, schema.root, schema.depth}) : any_value()));
  uint64_t min = 0;
  uint64_t max = 0;
  (void)schema.value["minItems"].get(min);
  const bool has_max = schema.value["maxItems"].get(max);
  if (has_max && max == 0) return literal("[]");
  constexpr uint64_t kMaxCount = 1000;
  const auto more_min = static_cast<uint32_t>(std::clamp<uint64_t>(min, 1, kMaxCount) - 1);
  const auto more_max = has_max ? std::optional(static_cast<uint32_t>(std::min(max, kMaxCount) - 1)) : std::nullopt;
  ExpressionPtr filled = sequence({item, repeat(sequence({literal(dialect_.separator), item}), more_min, more_max)});
  return sequence({literal("["), min > 0 ? filled : optional(filled), literal("]")});
}

ExpressionPtr LiteralGrammar::any_members(bool is_top) {
  const bool is_quoted = !is_top && dialect_.quote.empty();
  ExpressionPtr name = is_quoted ? *grammar::parse_json_schema(R"({"type":"string"})", definition_)
                                 : repeat(one_of(key_chars()), 1, 100);
  ExpressionPtr member =
      sequence({name, is_quoted ? literal(": ") : literal(std::string(1, dialect_.key_end)), any_value()});
  return optional(sequence({member, repeat(sequence({literal(dialect_.separator), member}), 0)}));
}

ExpressionPtr LiteralGrammar::any_value() {
  if (any_value_) return reference(*any_value_);
  any_value_ = definition_.add("any value");
  const grammar::RuleIndex rule = *any_value_;
  ExpressionPtr list = sequence(
      {literal("["),
       optional(sequence({reference(rule), repeat(sequence({literal(dialect_.separator), reference(rule)}), 0)})),
       literal("]")});
  ExpressionPtr object = in_brackets(any_members(false), false);
  definition_.rules[rule].expression =
      choice({string({}), *grammar::parse_json_schema(R"({"type":"number"})", definition_), literal(dialect_.true_word),
              literal(dialect_.false_word), literal(dialect_.null_word), std::move(list), std::move(object)});
  return reference(rule);
}

}  // namespace millrace::server
