#include "text/tokenizer/word_piece.h"

#include <algorithm>

#include "text/unicode.h"

namespace millrace::text {

WordPiece::WordPiece(Config config) : config_(std::move(config)), unk_id_(find_id(config_.vocab, config_.unk_token)) {
  for (const auto& [token, id] : config_.vocab) longest_token_ = std::max(longest_token_, token.size());
}

void WordPiece::encode(std::string_view word, std::vector<TokenId>& out) const {
  const size_t start = out.size();
  bool is_known = true;
  if (config_.whole_words_only) {
    out.push_back(find_id(config_.vocab, word));
    is_known = out.back() >= 0;
  } else {
    is_known = count_code_points(word) <= config_.max_characters;
    for (size_t at = 0; is_known && at < word.size();) {
      const auto [id, length] = longest(word.substr(at), at == 0);
      is_known = id >= 0;
      out.push_back(id);
      at += length;
    }
  }
  if (is_known) return;
  out.resize(start);
  if (unk_id_ >= 0) out.push_back(unk_id_);
}

std::pair<TokenId, size_t> WordPiece::longest(std::string_view rest, bool is_first) const {
  const std::string_view prefix = is_first ? std::string_view() : config_.continuing_subword_prefix;
  std::string candidate = std::string(prefix).append(rest.substr(0, longest_token_));
  while (candidate.size() > prefix.size()) {
    if (const TokenId id = find_id(config_.vocab, candidate); id >= 0) return {id, candidate.size() - prefix.size()};
    candidate.resize(last_code_point(candidate));
  }
  return {-1, 0};
}

}  // namespace millrace::text
