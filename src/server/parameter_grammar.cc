#include "server/parameter_grammar.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <string>
#include <utility>

#include "base/check.h"
#include "grammar/char_set.h"
#include "grammar/copy_rules.h"
#include "grammar/until_tag.h"
#include "grammar/without_tags.h"
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
/// Limits what one value, and all together, may grow by so that they hold no tag.
constexpr size_t kMaxValueEdges = 20'000;
constexpr size_t kMaxEdges = 200'000;
/// The bytes of a key that the parser reads, without those of a tag.
constexpr size_t kMaxKeyBytes = 1000;

/// Returns the longest part that all words have. The words are UTF-8, and so is the part.
std::string_view common_part(const std::vector<std::string_view>& words) {
  const std::string_view first = words.front();
  std::string_view best;
  const auto begins_character = [&](size_t at) { return at == first.size() || (first[at] & 0xC0) != 0x80; };
  for (size_t begin = 0; begin < first.size(); ++begin) {
    for (size_t end = begin + best.size() + 1; end <= first.size(); ++end) {
      if (!begins_character(begin) || !begins_character(end)) continue;
      const std::string_view part = first.substr(begin, end - begin);
      const auto has_part = [part](std::string_view word) { return word.find(part) != std::string_view::npos; };
      if (std::ranges::all_of(words, has_part)) best = part;
    }
  }
  return best;
}

/// Returns the first half of a text, at least a character of it.
std::string_view first_half(std::string_view text) {
  size_t end = (text.size() + 1) / 2;
  while (end < text.size() && (text[end] & 0xC0) == 0x80) ++end;
  return text.substr(0, end);
}

}  // namespace

ParameterGrammar::ParameterGrammar(const text::ToolCallSyntax& syntax, grammar::Definition& definition)
    : tags_(*syntax.tags),
      value_ends_(syntax.value_ends()),
      common_part_(common_part(value_ends_)),
      definition_(definition) {
  CHECK(!common_part_.empty(), "what ends a value has a part in common");
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
  auto text = grammar::without_tags(source, value_ends_, definition_);
  // A part of the tags takes fewer states.
  if (text.has_error()) text = grammar::without_tags(source, {&common_part_, 1}, definition_);
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
    if (member.others) ways.push_back(sequence({literal(kNoStringOpen), json_value(member.others, source)}));
  } else if (!types.text) {
    ways.push_back(sequence({literal(tags_.value_open), json_value(member.json, source)}));
  } else if (member.others && types.has_others_than_text()) {
    ways.push_back(sequence({literal(tags_.value_open), json_value(member.others, source)}));
  }
  return sequence({literal(tags_.open), member.key, literal(tags_.key_end), choice(std::move(ways))});
}

Result<ExpressionPtr> ParameterGrammar::text_value(const grammar::SchemaMember& member, grammar::Definition& source) {
  if (member.is_any_text) return free_text();
  for (const std::string& text : member.listed_texts) {
    const auto is_in_text = [&text](std::string_view tag) { return text.find(tag) != std::string::npos; };
    if (std::ranges::any_of(value_ends_, is_in_text)) {
      return make_error(ErrorCode::kInvalidArgument, "calls of this model cannot have the value '{}' of '{}'",
                        std::string_view(text).substr(0, 64), member.name.value_or("").substr(0, 64));
    }
  }
  for (const Tags& tags : {value_ends_, Tags{common_part_}}) {
    if (ExpressionPtr text = without(tags, member.text, source)) {
      return sequence({std::move(text), literal(tags_.value_end)});
    }
  }
  return free_text();
}

ExpressionPtr ParameterGrammar::json_value(const ExpressionPtr& json, grammar::Definition& source) {
  ExpressionPtr value = without(value_ends_, json, source);
  // Long strings with bounds have too many states for long tags. A beginning of the tags takes fewer.
  const bool has_one = value_ends_.size() == 1;
  for (std::string_view tag = has_one ? first_half(common_part_) : common_part_; value == nullptr;
       tag = first_half(tag)) {
    value = without({tag}, json, source);
    if (first_half(tag) == tag) break;
  }
  if (value == nullptr) {
    std::map<grammar::RuleIndex, grammar::RuleIndex> rules;
    value = grammar::copy_rules(source, json, definition_, rules);
  }
  return sequence({std::move(value), literal(tags_.value_end)});
}

ExpressionPtr ParameterGrammar::without(const Tags& tags, const ExpressionPtr& value, grammar::Definition& source) {
  source.root = value;
  const size_t most = std::min(kMaxValueEdges, kMaxEdges - std::min(kMaxEdges, edge_count_));
  auto text = grammar::without_tags(source, tags, definition_, most, &edge_count_);
  return text.has_value() ? std::move(*text) : nullptr;
}

ExpressionPtr ParameterGrammar::free_text() const {
  const std::string_view tag = value_ends_.front();
  const size_t end = tags_.value_end.find(tag) + tag.size();
  return grammar::until_tag(value_ends_, literal(tags_.value_end.substr(end)));
}

}  // namespace millrace::server
