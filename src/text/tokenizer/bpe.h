#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/ids.h"
#include "text/tokenizer/word_cache.h"

namespace millrace::text {

struct StringHash {
  using is_transparent = void;
  size_t operator()(std::string_view text) const { return std::hash<std::string_view>{}(text); }
};
using TokenMap = std::unordered_map<std::string, TokenId, StringHash, std::equal_to<>>;

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
    bool ignore_merges = false;  ///< a word that is a token needs no merges
    std::string unk_token;       ///< empty: unknown symbols are dropped
  };
  using Merge = std::pair<std::string_view, std::string_view>;

  /// Throws ErrorException (kData) if a merge names tokens outside the vocabulary.
  Bpe(const Config& config, const TokenMap& vocab, const std::vector<Merge>& merges);

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

  void add_merge(TokenId left, TokenId right, uint32_t rank, TokenId merged);
  [[nodiscard]] MergeEntry find_merge(TokenId left, TokenId right) const;
  void index_initial_symbols(const TokenMap& vocab);
  void encode_segment(std::string_view word, const char* readable_end, BpeScratch& scratch,
                      std::vector<TokenId>& out) const;
  void encode_uncached(std::string_view word, BpeScratch& scratch, std::vector<TokenId>& out) const;
  void append_initial(std::string_view word, std::vector<TokenId>& out) const;
  void append_initial_code_points(std::string_view word, std::vector<TokenId>& out) const;
  void merge_short(BpeScratch& scratch, std::vector<TokenId>& out) const;
  void merge_long(BpeScratch& scratch, std::vector<TokenId>& out) const;
  void refresh_pair(BpeScratch& scratch, int32_t position) const;

  Config config_;
  TokenId unk_id_ = -1;
  bool splits_at_metaspace_ = false;  ///< no merge crosses into U+2581 from another character
  bool has_all_byte_tokens_ = false;
  std::array<TokenId, 256> byte_ids_{};
  std::unordered_map<char32_t, TokenId> code_point_ids_;
  TokenMap whole_words_;  ///< by raw bytes; only with ignore_merges
  std::vector<MergeEntry> merges_;
  uint64_t merge_mask_ = 0;
};

}  // namespace millrace::text
