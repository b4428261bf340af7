#include "text/chat_template/effort_words.h"

#include <algorithm>
#include <array>
#include <cstdlib>

namespace millrace::text {
namespace {

constexpr std::string_view kUnknown = "probe-effort";
constexpr std::string_view kNone = "none";
/// Stands for none in the templates of Hunyuan 3.
constexpr std::string_view kNoThink = "no_think";
/// From the least to the most.
constexpr std::array<std::string_view, 6> kThinking = {"minimal", "low", "medium", "high", "xhigh", "max"};

/// Returns whether `text` has `word` exactly where `other` has `other_word`, and is equal to it elsewhere.
bool has_as_is(const std::optional<std::string>& text, std::string_view word, std::optional<std::string> other,
               std::string_view other_word) {
  if (!text || !other || other->find(other_word) == std::string::npos) return false;
  for (size_t at = other->find(other_word); at != std::string::npos; at = other->find(other_word, at + word.size())) {
    other->replace(at, other_word.size(), word);
  }
  return *text == *other;
}

bool contains(const std::vector<std::string_view>& words, std::string_view word) {
  return std::ranges::find(words, word) != words.end();
}

}  // namespace

EffortWords EffortWords::probe(const Render& render) {
  EffortWords found;
  const auto with_unknown = render(kUnknown);
  if (with_unknown) {
    found.prints_any_ = has_as_is(render(kNone), kNone, with_unknown, kUnknown);
    return found;
  }
  // A template that fails without a word too fails for another reason.
  if (!render({})) return found;
  found.taken_.emplace();
  for (const std::string_view word : {kNone, kNoThink}) {
    if (render(word)) found.taken_->push_back(word);
  }
  for (const std::string_view word : kThinking) {
    if (render(word)) found.taken_->push_back(word);
  }
  return found;
}

std::string_view EffortWords::word_for(std::string_view effort) const {
  // A model whose template prints any word was not trained with this one; the least that such models know is low.
  if (prints_any_ && effort == kNone) return kThinking[1];
  if (!taken_ || effort.empty() || contains(*taken_, effort)) return effort;
  if (effort == kNone) return contains(*taken_, kNoThink) ? kNoThink : std::string_view();
  const auto wanted = std::ranges::find(kThinking, effort) - kThinking.begin();
  std::string_view nearest;
  auto least = std::ssize(kThinking);
  // The most comes first, so that of two words equally far the one that thinks longer is taken.
  for (auto rank = std::ssize(kThinking) - 1; rank >= 0; --rank) {
    const auto distance = std::abs(rank - wanted);
    if (distance >= least || !contains(*taken_, kThinking[static_cast<size_t>(rank)])) continue;
    least = distance;
    nearest = kThinking[static_cast<size_t>(rank)];
  }
  return nearest;
}

}  // namespace millrace::text
