#include "grammar/vocabulary.h"

#include <algorithm>
#include <numeric>

namespace millrace::grammar {

Vocabulary::Vocabulary(std::span<const std::string> texts) : size_(static_cast<uint32_t>(texts.size())) {
  for (const std::string& text : texts) {
    begin_.push_back(static_cast<uint32_t>(bytes_.size()));
    bytes_ += text;
    max_token_bytes_ = std::max(max_token_bytes_, text.size());
  }
  begin_.push_back(static_cast<uint32_t>(bytes_.size()));
  for (TokenId token = 0; token < static_cast<TokenId>(size_); ++token) {
    if (!texts[static_cast<size_t>(token)].empty()) tokens_.push_back(token);
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

std::string_view Vocabulary::text_of(TokenId token) const {
  const auto at = static_cast<size_t>(token);
  return std::string_view(bytes_).substr(begin_[at], begin_[at + 1] - begin_[at]);
}

}  // namespace millrace::grammar
