#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/ids.h"
#include "text/tokenizer/vocabulary.h"
#include "text/tokenizer/word_cache.h"

namespace millrace::text {

/// The working memory of one encode call.
struct BpeScratch {
  struct Symbol {
    TokenId id;
    uint32_t rank;   ///< of the merge with the next symbol, kNoRank if there is none
    TokenId merged;  ///< what that merge gives
    int32_t previous;
    int32_t next;  ///< -1 at the end, kDead when merged into its left neighbour
  };
  WordCache cache;
  std::vector<Symbol> symbols;
  std::vector<std::pair<uint32_t, uint32_t>> heap;  ///< (rank, position), the smallest first
  std::vector<TokenId> ids;
};

/// Byte-pair encoding: the lowest-ranked merge, leftmost first, until none applies. Immutable after construction.
/// Symbols start as bytes (byte-level vocabularies) or as code points (SentencePiece-style vocabularies).
class Bpe {
 public:
  struct Config {
    bool byte_level = false;     ///< the vocabulary is spelt in the byte-level alphabet; words arrive as raw bytes
    bool byte_fallback = false;  ///< unknown code points become <0xNN> tokens
    bool fuse_unk = false;
    bool ignore_merges = false;             ///< a word that is a token needs no merges
    std::string unk_token;                  ///< empty: unknown symbols are dropped
    std::string continuing_subword_prefix;  ///< starts every symbol of a word but the first
    std::string end_of_word_suffix;         ///< ends the last symbol of a word
  };
  using Merge = std::pair<std::string_view, std::string_view>;

  /// Throws ErrorException (kData) if a merge names tokens outside the vocabulary.
  Bpe(const Config& config, const TokenMap& vocab, const std::vector<Merge>& merges);
  /// A vocabulary of bytes by rank, the first with `first_id`. Two neighbours merge if their joined bytes are a token;
  /// the token of the lowest rank comes first. Throws ErrorException (kData) if two tokens are equal, one is empty or
  /// longer than kMaxRankedBytes, or a single byte has none.
  Bpe(std::span<const std::string> tokens, TokenId first_id);
  /// Several times the longest token that is known.
  static constexpr size_t kMaxRankedBytes = 1024;

  /// Appends the tokens of one pre-token, valid UTF-8. Memory up to `readable_end` may be read.
  void encode(std::string_view word, const char* readable_end, BpeScratch& scratch, std::vector<TokenId>& out) const;

 private:
  static constexpr uint32_t kNoRank = UINT32_MAX;
  static constexpr int32_t kDead = -2;
  struct MergeEntry {
    uint64_t pair = UINT64_MAX;
    uint32_t rank = kNoRank;
    TokenId merged = -1;
  };

  void index_ranked_tokens(std::span<const std::string> tokens, TokenId first_id);
  /// Adds the merges that can give a token of the bytes `token`, once all merges of lower ranks are there.
  void add_ranked_merges(std::string_view token, uint32_t rank, TokenId id, BpeScratch& scratch);
  void add_merge(TokenId left, TokenId right, uint32_t rank, TokenId merged);
  [[nodiscard]] MergeEntry find_merge(TokenId left, TokenId right) const;
  void index_initial_symbols(const TokenMap& vocab);
  void encode_segment(std::string_view word, const char* readable_end, BpeScratch& scratch,
                      std::vector<TokenId>& out) const;
  void encode_uncached(std::string_view word, BpeScratch& scratch, std::vector<TokenId>& out) const;
  void append_initial(std::string_view word, std::vector<TokenId>& out) const;
  [[nodiscard]] TokenId symbol_id(std::string_view symbol, size_t variant) const;
  [[nodiscard]] bool append_byte_tokens(std::string_view symbol, size_t variant, std::vector<TokenId>& out) const;
  /// Merges the symbols of scratch.ids.
  void merge(BpeScratch& scratch, std::vector<TokenId>& out) const;
  void merge_short(BpeScratch& scratch, std::vector<TokenId>& out) const;
  void merge_long(BpeScratch& scratch, std::vector<TokenId>& out) const;
  void refresh_pair(BpeScratch& scratch, int32_t position) const;

  /// Bits of a symbol's variant: what its spelling in the vocabulary adds to the character.
  static constexpr size_t kHasPrefix = 1;
  static constexpr size_t kHasSuffix = 2;
  /// The tokens of single characters, in one variant.
  struct InitialIds {
    std::array<TokenId, 256> bytes{};  ///< only of a byte-level vocabulary; -1 if there is none
    std::unordered_map<char32_t, TokenId> code_points;
  };

  Config config_;
  TokenId unk_id_ = -1;
  bool splits_at_metaspace_ = false;  ///< no merge crosses into U+2581 from another character
  bool is_plain_bytes_ = false;       ///< every byte has a token, and there is one variant
  std::array<InitialIds, 4> initial_;
  std::array<TokenId, 256> byte_tokens_{};  ///< <0xNN>; -1 if there is none
  TokenMap whole_words_;                    ///< by raw bytes; only with ignore_merges
  std::vector<MergeEntry> merges_;          ///< a hash table, at most half full
  size_t merge_count_ = 0;
  uint64_t merge_mask_ = 0;
};

}  // namespace millrace::text
