#include "server/parameter_grammar.h"

#include <fmt/format.h>

#include <optional>
#include <utility>
#include <vector>

#include "grammar/char_set.h"
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
    : tags_(*syntax.tags), definition_(definition), free_text_(definition.add("a text")) {
  const std::vector<std::string_view> ends = syntax.value_ends();
  const size_t end = tags_.value_end.find(ends.front()) + ends.front().size();
  definition.rules[free_text_].expression = grammar::until_tag(ends, literal(tags_.value_end.substr(end)));
}

Result<ExpressionPtr> ParameterGrammar::of(std::string_view schema, const SchemaOptions& options) {
  const std::string tool;
  text::ParameterTypes types;
  types.add(tool, schema);
  const auto types_of = [&](const std::optional<std::string>& name) {
    return name ? types.of(tool, *name) : types.of_others(tool);
  };
  const grammar::MemberSyntax syntax{.key_pattern = key_pattern(), .has_texts = [&](const auto& name) {
                                       return tags_.has_string_attribute ||
                                              types_of(name).has(text::ValueType::kString);
                                     }};
  std::vector<grammar::SchemaMember> members;
  auto root = grammar::parse_member_schema(schema, definition_, options, syntax, members);
  if (root.has_error()) return root;
  for (const grammar::SchemaMember& member : members) {
    if (member.name && !can_write_key(*member.name)) {
      return make_error(ErrorCode::kInvalidArgument, "calls of this model cannot have a parameter '{}'",
                        std::string_view(*member.name).substr(0, 64));
    }
    definition_.rules[member.rule].expression = parameter(member, types_of(member.name));
  }
  return root;
}

ExpressionPtr ParameterGrammar::of_input(ExpressionPtr text) {
  return sequence({literal(fmt::format("{}input{}{}", tags_.open, tags_.key_end, tags_.value_open)), std::move(text),
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

std::string ParameterGrammar::key_pattern() const {
  return fmt::format("[^{0}\\s]([^{0}\\n\\r\\t]{{0,98}}[^{0}\\s])?", tags_.key_end.front());
}

bool ParameterGrammar::can_write_key(std::string_view key) const {
  return key.size() <= kMaxKeyBytes && text::without_space(key) == key && key.find('\n') == std::string_view::npos &&
         (std::string(key) + std::string(tags_.key_end)).find(tags_.key_end) == key.size();
}

ExpressionPtr ParameterGrammar::parameter(const grammar::SchemaMember& member, text::ValueTypes types) const {
  std::vector<ExpressionPtr> ways;
  if (member.is_any_text) {
    ways.push_back(sequence({literal(tags_.value_open), grammar::reference(free_text_)}));
  } else if (member.text != nullptr) {
    ways.push_back(sequence({literal(tags_.value_open), member.text, literal(tags_.value_end)}));
  }
  const bool has_json =
      tags_.has_string_attribute || !types.has(text::ValueType::kString) || types.has_others_than_string();
  if (has_json && member.json != nullptr) {
    const std::string_view open = tags_.has_string_attribute ? kNoStringOpen : tags_.value_open;
    ways.push_back(sequence({literal(open), member.json, literal(tags_.value_end)}));
  }
  return sequence({literal(tags_.open), member.key, literal(tags_.key_end), choice(std::move(ways))});
}

}  // namespace millrace::server
