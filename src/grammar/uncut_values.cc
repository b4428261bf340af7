#include "grammar/uncut_values.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "grammar/without_tags.h"

namespace millrace::grammar {
namespace {

/// Limits the steps of one value, and of all together. A step takes about ten states of the automaton.
constexpr size_t kMaxValueEdges = 5'000;
constexpr size_t kMaxEdges = 10'000;
/// Limits the steps of a string in JSON, beyond which it leaves out a half of a tag, and so on down to one character.
constexpr size_t kMaxJsonEdges = 2'000;
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

UncutValues::UncutValues(Tags tags) : tags_(std::move(tags)), common_part_(common_part(tags_)) {
  CHECK(!common_part_.empty(), "what ends a value has a part in common");
}

bool UncutValues::has_tag(std::string_view text) const {
  return std::ranges::any_of(tags_, [text](std::string_view tag) { return text.find(tag) != std::string_view::npos; });
}

std::string UncutValues::escaped(std::string json) const {
  for (const std::string_view tag : tags_) {
    const std::string escape = fmt::format("\\u{:04x}", static_cast<unsigned>(tag.front()));
    for (size_t at = json.find(tag); at != std::string::npos; at = json.find(tag, at)) json.replace(at, 1, escape);
  }
  return json;
}

ExpressionPtr UncutValues::text(const Definition& source, Definition& target) {
  ExpressionPtr text = without(tags_, source, target);
  if (text != nullptr || tags_.size() == 1) return text;
  return without({common_part_}, source, target);
}

ExpressionPtr UncutValues::json(const Definition& source, Definition& target) {
  // Each position of a counted string has masks of its own, unless the tags leave the state as it is.
  std::string_view tag = common_part_;
  if (json_failure_count_ < kMaxFailures) {
    auto value = without_tags(source, tags_, target, kMaxJsonEdges);
    for (; value.has_error() && first_half(tag) != tag; tag = first_half(tag))
      value = without_tags(source, {&tag, 1}, target, kMaxJsonEdges);
    if (value.has_value()) return std::move(*value);
    ++json_failure_count_;
  }
  while (first_half(tag) != tag) tag = first_half(tag);
  // One character takes no more steps than the string has.
  auto shortest = without_tags(source, {&tag, 1}, target);
  return shortest.has_value() ? std::move(*shortest) : nullptr;
}

Result<ExpressionPtr> UncutValues::whole(const Definition& source, Definition& target) const {
  auto text = without_tags(source, tags_, target);
  return text.has_error() ? without_tags(source, {&common_part_, 1}, target) : std::move(text);
}

ExpressionPtr UncutValues::without(const Tags& tags, const Definition& source, Definition& target) {
  if (failure_count_ >= kMaxFailures) return nullptr;
  const size_t most = std::min(kMaxValueEdges, kMaxEdges - std::min(kMaxEdges, edge_count_));
  auto text = without_tags(source, tags, target, most, &edge_count_);
  if (text.has_value()) return std::move(*text);
  ++failure_count_;
  return nullptr;
}

}  // namespace millrace::grammar
