#include "server/uncut_values.h"

#include <algorithm>
#include <map>
#include <utility>

#include "base/check.h"
#include "grammar/copy_rules.h"
#include "grammar/without_tags.h"

namespace millrace::server {
namespace {

using grammar::ExpressionPtr;

/// Limits the steps of one value, and of all together. A step takes about ten states of the automaton.
constexpr size_t kMaxValueEdges = 5'000;
constexpr size_t kMaxEdges = 10'000;
/// Limits the values that are found to take too many steps, since that takes time.
constexpr size_t kMaxFailures = 40;

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

UncutValues::UncutValues(Tags tags, grammar::Definition& definition)
    : tags_(std::move(tags)), common_part_(common_part(tags_)), definition_(definition) {
  CHECK(!common_part_.empty(), "what ends a value has a part in common");
}

ExpressionPtr UncutValues::text(grammar::Definition& source, const ExpressionPtr& text) {
  if (ExpressionPtr whole = without(tags_, source, text)) return whole;
  return without({common_part_}, source, text);
}

ExpressionPtr UncutValues::json(grammar::Definition& source, const ExpressionPtr& json) {
  ExpressionPtr value = text(source, json);
  std::string_view tag = common_part_;
  for (; value == nullptr && first_half(tag) != tag; tag = first_half(tag)) value = without({tag}, source, json);
  if (value != nullptr) return value;
  // One character takes no more steps than the value has.
  if (auto shortest = grammar::without_tags(source, {&tag, 1}, definition_); shortest.has_value()) return *shortest;
  std::map<grammar::RuleIndex, grammar::RuleIndex> rules;
  return grammar::copy_rules(source, json, definition_, rules);
}

Result<ExpressionPtr> UncutValues::input(const grammar::Definition& source) {
  auto text = grammar::without_tags(source, tags_, definition_);
  return text.has_error() ? grammar::without_tags(source, {&common_part_, 1}, definition_) : std::move(text);
}

ExpressionPtr UncutValues::without(const Tags& tags, grammar::Definition& source, const ExpressionPtr& value) {
  source.root = value;
  if (failure_count_ >= kMaxFailures) return nullptr;
  const size_t most = std::min(kMaxValueEdges, kMaxEdges - std::min(kMaxEdges, edge_count_));
  auto text = grammar::without_tags(source, tags, definition_, most, &edge_count_);
  if (text.has_value()) return std::move(*text);
  ++failure_count_;
  return nullptr;
}

}  // namespace millrace::server
