#include "server/parameter_grammar.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <string>
#include <utility>

#include "grammar/char_set.h"
#include "grammar/copy_rules.h"
#include "grammar/until_tag.h"
#include "text/tool_calls/partial_match.h"

namespace millrace::server {
namespace {

using grammar::CharSet;
using grammar::choice;
using grammar::ExpressionPtr;
using grammar::literal;
using grammar::one_of;
using grammar::repeat;
using grammar::SchemaOptions;
using grammar::sequence;

/// Follows the key of a value that is no string, in formats with the attribute.
constexpr std::string_view kNoStringOpen = " string=\"false\">";
/// The bytes of a key that the parser reads, without those of a tag.
constexpr size_t kMaxKeyBytes = 1000;

}  // namespace

ParameterGrammar::ParameterGrammar(const text::ToolCallSyntax& syntax, grammar::Definition& definition)
    : tags_(*syntax.tags),
      value_ends_(syntax.value_ends()),
      values_(value_ends_, definition),
      definition_(definition),
      free_text_(definition.add("a text")) {
  const std::string_view tag = value_ends_.front();
  const size_t end = tags_.value_end.find(tag) + tag.size();
  definition.rules[free_text_].expression = grammar::until_tag(value_ends_, literal(tags_.value_end.substr(end)));
}

Result<ExpressionPtr> ParameterGrammar::of(std::string_view schema, const SchemaOptions& options) {
  grammar::Definition source;
  std::vector<grammar::SchemaMember> members;
  auto root = grammar::parse_member_schema(schema, source, options, key_pattern(), members);
  if (root.has_error()) return root.error();
  const std::string tool;
  text::ParameterTypes types;
  types.add(tool, schema);
  std::map<grammar::RuleIndex, grammar::RuleIndex> rules;
  for (const grammar::SchemaMember& member : members) {
    auto written = parameter(member, member.name ? types.of(tool, *member.name) : types.of_others(tool), source);
    if (written.has_error()) return written.error();
    rules[member.rule] = definition_.add("a parameter", std::move(*written));
  }
  return grammar::copy_rules(source, *root, definition_, rules);
}

Result<ExpressionPtr> ParameterGrammar::of_input(const grammar::Definition& source) {
  auto text = values_.input(source);
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
                          choice(std::move(openings)), grammar::reference(free_text_)}),
                0);
}

/// Returns the keys of parameters that no schema lists, as the parser reads them.
std::string ParameterGrammar::key_pattern() const {
  return fmt::format("[^{0}\\s]([^{0}\\n\\r\\t]{{0,98}}[^{0}\\s])?", tags_.key_end.front());
}

bool ParameterGrammar::can_write_key(std::string_view key) const {
  return key.size() <= kMaxKeyBytes && text::without_space(key) == key && key.find('\n') == std::string_view::npos &&
         (std::string(key) + std::string(tags_.key_end)).find(tags_.key_end) == key.size();
}

Result<ExpressionPtr> ParameterGrammar::parameter(const grammar::SchemaMember& member, const text::ValueTypes& types,
                                                  grammar::Definition& source) {
  if (member.name && !can_write_key(*member.name)) {
    return make_error(ErrorCode::kInvalidArgument, "calls of this model cannot have a parameter '{}'",
                      std::string_view(*member.name).substr(0, 64));
  }
  std::vector<ExpressionPtr> ways;
  const bool is_text = member.text != nullptr && (types.text || tags_.has_string_attribute);
  if (is_text) {
    auto text = text_value(member, source);
    if (text.has_error()) return text.error();
    ways.push_back(sequence({literal(tags_.value_open), std::move(*text)}));
  }
  if (tags_.has_string_attribute) {
    if (member.others)
      ways.push_back(sequence({literal(kNoStringOpen), values_.json(source, member.others), literal(tags_.value_end)}));
  } else if (!types.text) {
    ways.push_back(sequence({literal(tags_.value_open), values_.json(source, member.json), literal(tags_.value_end)}));
  } else if (member.others && types.has_others_than_text()) {
    ways.push_back(
        sequence({literal(tags_.value_open), values_.json(source, member.others), literal(tags_.value_end)}));
  }
  return sequence({literal(tags_.open), member.key, literal(tags_.key_end), choice(std::move(ways))});
}

Result<ExpressionPtr> ParameterGrammar::text_value(const grammar::SchemaMember& member, grammar::Definition& source) {
  if (member.is_any_text) return grammar::reference(free_text_);
  for (const std::string& text : member.listed_texts) {
    const auto is_in_text = [&text](std::string_view tag) { return text.find(tag) != std::string::npos; };
    if (std::ranges::any_of(value_ends_, is_in_text)) {
      return make_error(ErrorCode::kInvalidArgument, "calls of this model cannot have the value '{}' of '{}'",
                        std::string_view(text).substr(0, 64), member.name.value_or("").substr(0, 64));
    }
  }
  ExpressionPtr text = values_.text(source, member.text);
  return text == nullptr ? grammar::reference(free_text_) : sequence({std::move(text), literal(tags_.value_end)});
}

}  // namespace millrace::server
