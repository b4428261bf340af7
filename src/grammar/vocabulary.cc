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

Vocabulary::Vocabulary(std::span<const std::string> texts, std::span<const TokenId> tags)
    : size_(static_cast<uint32_t>(texts.size())), is_tag_(texts.size()) {
  for (const TokenId tag : tags) {
    const std::string& text = texts[static_cast<size_t>(tag)];
    if (text.empty()) continue;
    is_tag_[static_cast<size_t>(tag)] = true;
    tags_.push_back(text);
  }
  cuts_characters_ = find_spellable(texts);
  for (size_t token = 0; token < size_; ++token) {
    begin_.push_back(static_cast<uint32_t>(bytes_.size()));
    if (is_tag_[token]) bytes_ += kTagByte;
    bytes_ += texts[token];
    max_token_bytes_ = std::max(max_token_bytes_, bytes_.size() - begin_.back());
  }
  begin_.push_back(static_cast<uint32_t>(bytes_.size()));
  for (TokenId token = 0; token < static_cast<TokenId>(size_); ++token) {
    if (is_used(token)) tokens_.push_back(token);
  }
  std::ranges::sort(tokens_, {}, [this](TokenId token) { return std::pair(read_text_of(token), token); });
  std::vector<uint32_t> path;  // the nodes of the text before, by length
  const auto close = [&](size_t kept) {
    for (; path.size() > kept; path.pop_back()) nodes_[path.back()].end = static_cast<uint32_t>(nodes_.size());
  };
  std::string_view before;
  for (size_t i = 0; i < tokens_.size(); ++i) {
    const std::string_view text = read_text_of(tokens_[i]);
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
  std::vector<char32_t> characters;
  for (size_t token = 0; token < texts.size(); ++token) {
    const std::string& text = texts[token];
    const DecodedUtf8 first = decode_utf8(text);
    if (!is_tag_[token] && first.valid && first.length == text.size()) characters.push_back(first.code_point);
  }
  std::ranges::sort(characters);
  // A set takes ranges in ascending order at once, and others by a copy.
  for (size_t i = 0, end = 0; i < characters.size(); i = end) {
    for (end = i + 1; end < characters.size() && characters[end] <= characters[end - 1] + 1;) ++end;
    spellable_.add(characters[i], characters[end - 1]);
  }
  for (const LeadBytes& leads : kLeadBytes) {
    for (uint32_t lead = leads.low; can_continue && lead <= leads.high; ++lead) {
      const char32_t first = (lead & leads.bits) << leads.continuation_bits;
      const char32_t last = first + (char32_t{1} << leads.continuation_bits) - 1;
      if (is_token[lead]) spellable_.add(std::max(first, leads.least), last);
    }
  }
  return can_continue;
}

bool Vocabulary::is_used(TokenId token) const {
  const std::string_view text = text_of(token);
  if (text.empty() || is_tag_[static_cast<size_t>(token)]) return !text.empty();
  return cuts_characters_ ? text.find(kTagByte) == text.npos : is_valid_utf8(text);
}

std::vector<Vocabulary::TagInText> Vocabulary::tags_in(std::string_view text) const {
  std::vector<TagInText> found;
  for (const std::string& tag : tags_) {
    for (size_t at = text.find(tag); at != text.npos; at = text.find(tag, at + 1))
      found.push_back({at, at + tag.size()});
  }
  std::ranges::sort(found, {}, [](const TagInText& tag) { return std::pair(tag.begin, tag.end); });
  return found;
}

bool Vocabulary::can_spell(std::string_view text) const {
  if (text.empty()) return true;
  const auto is_token = [this](std::string_view part) {
    return std::ranges::binary_search(tokens_, part, {}, [this](TokenId token) { return read_text_of(token); });
  };
  std::vector<bool> leads_to_end(text.size() + 1);
  leads_to_end[text.size()] = true;
  for (size_t begin = text.size(); begin-- > 0;) {
    const size_t longest = std::min(max_token_bytes_, text.size() - begin);
    for (size_t n = 1; n <= longest && !leads_to_end[begin]; ++n)
      leads_to_end[begin] = leads_to_end[begin + n] && is_token(text.substr(begin, n));
  }
  if (!leads_to_end[0]) return false;
  // A token may also end within the text that has begun before it.
  std::vector<bool> is_reached(text.size());
  is_reached[0] = true;
  for (const TokenId token : tokens_) {
    const std::string_view own = read_text_of(token);
    if (is_tag_[static_cast<size_t>(token)]) continue;
    for (size_t at = own.find(text.front()); at != own.npos; at = own.find(text.front(), at + 1)) {
      const std::string_view read = own.substr(at);
      if (read.size() < text.size() && text.starts_with(read)) is_reached[read.size()] = true;
    }
  }
  for (size_t end = 1; end < text.size(); ++end) {
    const size_t longest = std::min(max_token_bytes_, end);
    for (size_t n = 1; n <= longest && !is_reached[end]; ++n)
      is_reached[end] = is_reached[end - n] && is_token(text.substr(end - n, n));
    if (is_reached[end] && !leads_to_end[end]) return false;
  }
  return true;
}

std::string_view Vocabulary::text_of(TokenId token) const {
  const std::string_view text = read_text_of(token);
  return is_tag_[static_cast<size_t>(token)] ? text.substr(1) : text;
}

std::string_view Vocabulary::read_text_of(TokenId token) const {
  const auto at = static_cast<size_t>(token);
  return std::string_view(bytes_).substr(begin_[at], begin_[at + 1] - begin_[at]);
}

}  // namespace millrace::grammar
