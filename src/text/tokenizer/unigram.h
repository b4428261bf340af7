#pragma once

#include <array>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/ids.h"
#include "text/tokenizer/vocabulary.h"
#include "text/tokenizer/word_cache.h"

namespace millrace::text {

/// The best way to cut a text up to one byte.
struct UnigramNode {
  double score = 0;
  size_t begin = 0;  ///< where the last token of that way starts
  TokenId id = -1;   ///< -1: an unknown character without an unknown token
  bool is_reached = false;
};

/// The Unigram model of SentencePiece: the tokens whose scores have the largest sum (Kudo 2018, by Viterbi). Unknown
/// neighbours become one unknown token. Immutable after construction.
class Unigram {
 public:
  struct Config {
    std::vector<std::pair<std::string, double>> vocab;  ///< by id, with the score
    TokenId unk_id = -1;
    bool byte_fallback = false;  ///< unknown characters become <0xNN> tokens
  };

  explicit Unigram(const Config& config);

  /// Appends the tokens of one pre-token, valid UTF-8. Memory up to `readable_end` may be read. `nodes` is working
  /// memory.
  void encode(std::string_view word, const char* readable_end, WordCache& cache, std::vector<UnigramNode>& nodes,
              std::vector<TokenId>& out) const;

 private:
  /// One node of the trie over the tokens' bytes. Children are neighbours, in the order of their bytes.
  struct TrieNode {
    uint32_t first_child = 0;
    uint32_t child_count = 0;
    TokenId id = -1;
    unsigned char byte = 0;
  };

  void build_trie();
  [[nodiscard]] uint32_t child(uint32_t node, unsigned char byte) const;
  void encode_uncached(std::string_view word, std::vector<UnigramNode>& nodes, std::vector<TokenId>& out) const;
  void extend(std::string_view word, size_t begin, std::vector<UnigramNode>& nodes) const;
  void append_unknown(std::string_view text, std::vector<TokenId>& out) const;

  static constexpr uint32_t kNone = UINT32_MAX;
  std::vector<double> scores_;
  TokenMap ids_;
  TokenId unk_id_;
  bool byte_fallback_;
  double unknown_score_ = 0;
  std::array<TokenId, 256> byte_tokens_{};  ///< -1 if there is none
  std::vector<TrieNode> trie_;              ///< the root first
};

}  // namespace millrace::text
