#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/ids.h"
#include "text/tokenizer/vocabulary.h"

namespace millrace::text {

/// The models that look words up: WordPiece cuts a word into the longest tokens from the left, and WordLevel knows
/// whole words only. A word that cannot be spelt is one unknown token. Immutable after construction.
class WordPiece {
 public:
  struct Config {
    TokenMap vocab;
    std::string unk_token;
    std::string continuing_subword_prefix;  ///< starts every token of a word but the first
    size_t max_characters = 100;            ///< a longer word is unknown
    bool whole_words_only = false;          ///< WordLevel
  };

  explicit WordPiece(Config config);

  /// Appends the tokens of one pre-token, valid UTF-8.
  void encode(std::string_view word, std::vector<TokenId>& out) const;

 private:
  /// Returns the longest token that `rest` starts with, and its length without the prefix; -1 if there is none.
  [[nodiscard]] std::pair<TokenId, size_t> longest(std::string_view rest, bool is_first) const;

  Config config_;
  TokenId unk_id_ = -1;
  size_t longest_token_ = 0;
};

}  // namespace millrace::text
