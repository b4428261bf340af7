#include "server/parameter_grammar.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/json.h"
#include "grammar/char_set.h"
#include "grammar/until_tag.h"
#include "grammar/without_tags.h"
#include "server/tool_schema.h"
#include "text/tool_calls/parameter_types.h"

namespace millrace::server {
namespace {

using grammar::CharSet;
using grammar::choice;
using grammar::ExpressionPtr;
using grammar::literal;
using grammar::one_of;
using grammar::optional;
using grammar::repeat;
using grammar::SchemaOptions;
using grammar::sequence;

/// Follows the key of a value that is no string, in formats with the attribute.
constexpr std::string_view kNoStringOpen = " string=\"false\">";
/// Limits what a value of JSON may grow by so that its strings hold no tag.
constexpr size_t kMaxJsonEdges = 20'000;

}  // namespace

ParameterGrammar::ParameterGrammar(const text::ToolCallSyntax& syntax, grammar::Definition& definition)
    : tags_(*syntax.tags), value_ends_(syntax.value_ends()), definition_(definition) {}

Result<ExpressionPtr> ParameterGrammar::of(JsonValue schema, const SchemaOptions& options) {
  std::vector<ExpressionPtr> parts;
  JsonObject properties;
  if (!schema["properties"].get(properties)) return literal("");
  for (const auto& [key, property] : properties) {
    if (key.find('\n') != std::string_view::npos || key.find(tags_.key_end) != std::string_view::npos) {
      return make_error(ErrorCode::kInvalidArgument, "calls of this model cannot have a parameter '{}'",
                        key.substr(0, 64));
    }
    auto written = parameter(key, property, schema, options);
    if (written.has_error()) return written.error();
    parts.push_back(is_required(schema, key) ? *written : optional(*written));
  }
  return sequence(std::move(parts));
}

Result<ExpressionPtr> ParameterGrammar::of_input(const grammar::Definition& source) {
  auto text = grammar::without_tags(source, value_ends_, definition_);
  if (text.has_error()) return text.error();
  return sequence({literal(fmt::format("{}input{}{}", tags_.open, tags_.key_end, tags_.value_open)), std::move(*text),
                   literal(tags_.value_end)});
}

ExpressionPtr ParameterGrammar::any() {
  CharSet bounds(static_cast<char32_t>(tags_.key_end.front()));
  bounds.add(U'\n', U'\n');
  std::vector<ExpressionPtr> openings = {literal(tags_.value_open)};
  if (tags_.has_string_attribute) openings.push_back(literal(kNoStringOpen));
  return repeat(sequence({literal(tags_.open), repeat(one_of(bounds.complement()), 1, 100), literal(tags_.key_end),
                          choice(std::move(openings)), free_text()}),
                0);
}

Result<ExpressionPtr> ParameterGrammar::parameter(std::string_view key, JsonValue property, JsonValue root,
                                                  const SchemaOptions& options) {
  const text::ValueTypes types = text::types_of_schema(property, root);
  const std::string begin = fmt::format("{}{}{}", tags_.open, key, tags_.key_end);
  std::vector<ExpressionPtr> ways;
  if (types.text) {
    auto text = text_value(key, property);
    if (text.has_error()) return text.error();
    ways.push_back(sequence({literal(begin), literal(tags_.value_open), std::move(*text)}));
  }
  if (!types.text || (types.has_others_than_text() && tags_.has_string_attribute)) {
    auto json = json_value(with_definitions(property, root), options);
    if (json.has_error()) return json.error();
    const std::string_view open = tags_.has_string_attribute ? kNoStringOpen : tags_.value_open;
    ways.push_back(sequence({literal(begin), literal(open), std::move(*json), literal(tags_.value_end)}));
  }
  return choice(std::move(ways));
}

Result<ExpressionPtr> ParameterGrammar::text_value(std::string_view key, JsonValue property) const {
  JsonArray values;
  if (!property["enum"].get(values) || values.empty()) return free_text();
  std::vector<ExpressionPtr> choices;
  for (const JsonValue value : values) {
    std::string_view text;
    const std::string word = value.get(text) ? std::string(text) : to_json(value);
    const auto is_in_word = [&word](std::string_view tag) { return word.find(tag) != std::string::npos; };
    if (std::ranges::any_of(value_ends_, is_in_word)) {
      return make_error(ErrorCode::kInvalidArgument, "calls of this model cannot have the value '{}' of '{}'",
                        std::string_view(word).substr(0, 64), key.substr(0, 64));
    }
    choices.push_back(literal(word));
  }
  return sequence({choice(std::move(choices)), literal(tags_.value_end)});
}

Result<ExpressionPtr> ParameterGrammar::json_value(std::string_view schema, const SchemaOptions& options) {
  grammar::Definition source;
  auto root = grammar::parse_json_schema(schema, source, options);
  if (root.has_error()) return root.error();
  source.root = std::move(*root);
  auto json = grammar::without_tags(source, value_ends_, definition_, kMaxJsonEdges);
  if (json.has_value()) return json;
  // Long strings with bounds would take too many states. They are kept, and a tag in one ends the value.
  return grammar::parse_json_schema(schema, definition_, options);
}

ExpressionPtr ParameterGrammar::free_text() const {
  const std::string_view tag = value_ends_.front();
  const size_t end = tags_.value_end.find(tag) + tag.size();
  return grammar::until_tag(value_ends_, literal(tags_.value_end.substr(end)));
}

}  // namespace millrace::server
