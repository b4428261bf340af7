#include "text/tokenizer/added_tokens.h"

#include <algorithm>

#include "base/utf8.h"
#include "text/unicode.h"
#include "text/unicode_properties.h"

namespace millrace::text {
namespace {

bool ends_with_word(std::string_view text) {
  return !text.empty() && rust_word_set().contains(decode_utf8(text.substr(last_code_point(text))).code_point);
}

bool starts_with_word(std::string_view text) {
  return !text.empty() && rust_word_set().contains(decode_utf8(text).code_point);
}

/// Returns where the white space at the end of `text` begins.
size_t trailing_space_begin(std::string_view text) {
  while (!text.empty()) {
    const size_t last = last_code_point(text);
    if (!is_white_space(decode_utf8(text.substr(last)).code_point)) break;
    text = text.substr(0, last);
  }
  return text.size();
}

size_t leading_space_length(std::string_view text) {
  size_t length = 0;
  while (length < text.size()) {
    const DecodedUtf8 step = decode_utf8(text.substr(length));
    if (!is_white_space(step.code_point)) break;
    length += step.length;
  }
  return length;
}

}  // namespace

AddedTokenMatcher::AddedTokenMatcher() {
  roots_.fill(kNone);
}

uint32_t AddedTokenMatcher::child(uint32_t node, unsigned char byte) const {
  uint32_t at = nodes_[node].first_child;
  while (at != kNone && nodes_[at].byte != byte) at = nodes_[at].next_sibling;
  return at;
}

void AddedTokenMatcher::add(const AddedToken& token, std::string_view pattern) {
  if (pattern.empty()) return;
  uint32_t node = kNone;
  for (const char c : pattern) {
    const auto byte = static_cast<unsigned char>(c);
    const uint32_t found = node == kNone ? roots_[byte] : child(node, byte);
    if (found != kNone) {
      node = found;
      continue;
    }
    const auto made = static_cast<uint32_t>(nodes_.size());
    nodes_.push_back({kNone, node == kNone ? kNone : nodes_[node].first_child, kNone, byte});
    (node == kNone ? roots_[byte] : nodes_[node].first_child) = made;
    node = made;
  }
  // The first of two tokens with one spelling keeps its id.
  if (nodes_[node].token != kNone) return;
  nodes_[node].token = static_cast<uint32_t>(tokens_.size());
  tokens_.push_back(token);
}

uint32_t AddedTokenMatcher::longest_at(std::string_view text, size_t at, size_t& end) const {
  uint32_t best = kNone;
  uint32_t node = roots_[static_cast<unsigned char>(text[at])];
  while (node != kNone) {
    ++at;
    if (nodes_[node].token != kNone) {
      best = nodes_[node].token;
      end = at;
    }
    if (at == text.size()) break;
    node = child(node, static_cast<unsigned char>(text[at]));
  }
  return best;
}

void AddedTokenMatcher::split(std::string_view text, bool skip_special, std::vector<Part>& parts) const {
  size_t done = 0;
  size_t at = 0;
  while (!tokens_.empty() && at < text.size()) {
    if (roots_[static_cast<unsigned char>(text[at])] == kNone) {
      ++at;
      continue;
    }
    size_t match_end = at;
    const uint32_t found = longest_at(text, at, match_end);
    if (found == kNone) {
      ++at;
      continue;
    }
    const AddedToken& token = tokens_[found];
    size_t begin = at;
    size_t end = match_end;
    // A rejected match is consumed all the same: nothing is looked for inside it.
    at = match_end;
    if (skip_special && token.special) continue;
    if (token.single_word && (ends_with_word(text.substr(0, begin)) || starts_with_word(text.substr(end)))) continue;
    if (token.lstrip) begin = done + trailing_space_begin(text.substr(done, std::max(begin, done) - done));
    if (token.rstrip) end += leading_space_length(text.substr(end));
    if (done < begin) parts.push_back({done, begin, -1});
    parts.push_back({begin, end, token.id});
    done = end;
  }
  if (done < text.size()) parts.push_back({done, text.size(), -1});
}

}  // namespace millrace::text
