#include "grammar/vocabulary.h"

#include <algorithm>
#include <array>

#include "base/utf8.h"

namespace millrace::grammar {
namespace {

/// Bytes that begin characters in UTF-8. Each begins as many as its continuation has bits for, from `least` on.
struct LeadBytes {
  uint8_t low;
  uint8_t high;
  uint8_t bits;  ///< of the byte that belong to the character
  uint32_t continuation_bits;
  char32_t least;
};
constexpr LeadBytes kLeadBytes[] = {
    {0xC2, 0xDF, 0x1F, 6, 0x80}, {0xE0, 0xEF, 0x0F, 12, 0x800}, {0xF0, 0xF4, 0x07, 18, 0x10000}};

}  // namespace

Vocabulary::Vocabulary(std::span<const std::string> texts) : size_(static_cast<uint32_t>(texts.size())) {
  cuts_characters_ = find_spellable(texts);
  for (TokenId token = 0; token < static_cast<TokenId>(size_); ++token) {
    const std::string& text = texts[static_cast<size_t>(token)];
    begin_.push_back(static_cast<uint32_t>(bytes_.size()));
    bytes_ += text;
    max_token_bytes_ = std::max(max_token_bytes_, text.size());
  }
  begin_.push_back(static_cast<uint32_t>(bytes_.size()));
  for (TokenId token = 0; token < static_cast<TokenId>(size_); ++token) {
    if (is_used(token)) tokens_.push_back(token);
  }
  std::ranges::sort(tokens_, {}, [this](TokenId token) { return std::pair(text_of(token), token); });
  std::vector<uint32_t> path;  // the nodes of the text before, by length
  const auto close = [&](size_t kept) {
    for (; path.size() > kept; path.pop_back()) nodes_[path.back()].end = static_cast<uint32_t>(nodes_.size());
  };
  std::string_view before;
  for (size_t i = 0; i < tokens_.size(); ++i) {
    const std::string_view text = text_of(tokens_[i]);
    const auto common = static_cast<size_t>(std::ranges::mismatch(before, text).in1 - before.begin());
    if (i > 0 && text == before) continue;
    close(common);
    for (size_t length = common + 1; length <= text.size(); ++length) {
      path.push_back(static_cast<uint32_t>(nodes_.size()));
      nodes_.push_back(
          {static_cast<uint8_t>(text[length - 1]), static_cast<uint32_t>(length), 0, static_cast<uint32_t>(i)});
    }
    before = text;
  }
  close(0);
  nodes_.push_back({0, 0, 0, static_cast<uint32_t>(tokens_.size())});
}

/// Returns whether a character that a token has begun can always be continued.
bool Vocabulary::find_spellable(std::span<const std::string> texts) {
  std::array<bool, 256> is_token{};
  for (const std::string& text : texts) {
    if (text.size() == 1) is_token[static_cast<uint8_t>(text.front())] = true;
  }
  const bool can_continue = std::all_of(is_token.begin() + 0x80, is_token.begin() + 0xC0, [](bool is) { return is; });
  for (const LeadBytes& leads : kLeadBytes) {
    for (uint32_t lead = leads.low; can_continue && lead <= leads.high; ++lead) {
      const char32_t first = (lead & leads.bits) << leads.continuation_bits;
      const char32_t last = first + (char32_t{1} << leads.continuation_bits) - 1;
      if (is_token[lead]) spellable_.add(std::max(first, leads.least), last);
    }
  }
  for (const std::string& text : texts) {
    const DecodedUtf8 first = decode_utf8(text);
    const bool is_char = first.valid && first.length == text.size();
    if (is_char && !spellable_.contains(first.code_point)) spellable_.add(first.code_point, first.code_point);
  }
  return can_continue;
}

bool Vocabulary::is_used(TokenId token) const {
  const std::string_view text = text_of(token);
  return !text.empty() && (cuts_characters_ || is_valid_utf8(text));
}

bool Vocabulary::can_spell(std::string_view text) const {
  std::vector<bool> leads_to_end(text.size() + 1);
  leads_to_end[text.size()] = true;
  for (size_t begin = text.size(); begin-- > 0;) {
    const std::string_view rest = text.substr(begin);
    leads_to_end[begin] = std::ranges::any_of(tokens_, [&](TokenId token) {
      return rest.starts_with(text_of(token)) && leads_to_end[begin + text_of(token).size()];
    });
  }
  if (!leads_to_end[0]) return false;
  // A token may also end within the text that has begun before it.
  std::vector<bool> is_reached(text.size());
  is_reached[0] = true;
  for (size_t end = 1; end < text.size(); ++end) {
    const std::string_view read = text.substr(0, end);
    is_reached[end] = std::ranges::any_of(tokens_, [&](TokenId token) {
      const std::string_view own = text_of(token);
      return own.ends_with(read) || (read.ends_with(own) && is_reached[end - own.size()]);
    });
    if (is_reached[end] && !leads_to_end[end]) return false;
  }
  return true;
}

std::string_view Vocabulary::text_of(TokenId token) const {
  const auto at = static_cast<size_t>(token);
  return std::string_view(bytes_).substr(begin_[at], begin_[at + 1] - begin_[at]);
}

}  // namespace millrace::grammar
