#include "text/tokenizer/bpe.h"

#include <algorithm>
#include <bit>

#include "base/hash.h"
#include "base/result.h"
#include "base/utf8.h"
#include "text/tokenizer/byte_level.h"
#include "text/unicode.h"

namespace millrace::text {
namespace {

constexpr std::string_view kMetaspace = "\xE2\x96\x81";
/// The length up to which a scan for the lowest rank beats the heap.
constexpr size_t kShortWordSymbols = 32;

uint64_t pair_key(TokenId left, TokenId right) {
  return (uint64_t{static_cast<uint32_t>(left)} << 32) | static_cast<uint32_t>(right);
}

/// Returns whether U+2581 follows another character anywhere in `token`.
bool crosses_into_metaspace(std::string_view token) {
  size_t at = 0;
  while ((at = token.find(kMetaspace, at)) != std::string_view::npos) {
    if (at > 0 && !token.substr(0, at).ends_with(kMetaspace)) return true;
    at += kMetaspace.size();
  }
  return false;
}

TokenId require_id(const TokenMap& vocab, std::string_view token) {
  const TokenId id = find_id(vocab, token);
  if (id < 0)
    throw ErrorException(make_error(ErrorCode::kData, "merges name \"{}\", which is not in the vocabulary", token));
  return id;
}

}  // namespace

Bpe::Bpe(const Config& config, const TokenMap& vocab, const std::vector<Merge>& merges) : config_(config) {
  merges_.resize(std::bit_ceil(merges.size() * 2 + 2));
  merge_mask_ = merges_.size() - 1;
  bool crosses = false;
  std::string joined;
  for (size_t i = 0; i < merges.size(); ++i) {
    const std::string_view second = merges[i].second;
    const size_t prefix = config_.continuing_subword_prefix.size();
    if (second.size() < prefix) {
      throw ErrorException(
          make_error(ErrorCode::kData, "merges name \"{}\", which is shorter than the prefix", second));
    }
    joined.assign(merges[i].first).append(second.substr(prefix));
    crosses = crosses || crosses_into_metaspace(joined);
    add_merge(require_id(vocab, merges[i].first), require_id(vocab, merges[i].second), static_cast<uint32_t>(i),
              require_id(vocab, joined));
  }
  if (!config_.unk_token.empty()) unk_id_ = find_id(vocab, config_.unk_token);
  index_initial_symbols(vocab);
  const bool is_affixed = !config_.continuing_subword_prefix.empty() || !config_.end_of_word_suffix.empty();
  splits_at_metaspace_ =
      !config_.byte_level && !config_.ignore_merges && !crosses && !is_affixed && find_id(vocab, kMetaspace) >= 0;
  is_plain_bytes_ =
      config_.byte_level && !is_affixed && std::ranges::all_of(initial_[0].bytes, [](TokenId id) { return id >= 0; });
  if (config_.ignore_merges) {
    for (const auto& [token, id] : vocab) {
      if (!config_.byte_level) {
        whole_words_.emplace(token, id);
      } else if (auto bytes = byte_level_bytes(token)) {
        whole_words_.emplace(*std::move(bytes), id);
      }
    }
  }
}

Bpe::Bpe(std::span<const std::string> tokens, TokenId first_id)
    : config_{.byte_level = true, .ignore_merges = true}, is_plain_bytes_(true) {
  merges_.resize(std::bit_ceil(tokens.size() * 2 + 2));
  merge_mask_ = merges_.size() - 1;
  index_ranked_tokens(tokens, first_id);
  BpeScratch scratch;
  for (size_t rank = 0; rank < tokens.size(); ++rank) {
    if (tokens[rank].size() == 1) continue;
    add_ranked_merges(tokens[rank], static_cast<uint32_t>(rank), first_id + static_cast<TokenId>(rank), scratch);
  }
}

void Bpe::index_ranked_tokens(std::span<const std::string> tokens, TokenId first_id) {
  whole_words_.reserve(tokens.size());
  for (size_t rank = 0; rank < tokens.size(); ++rank) {
    const size_t size = tokens[rank].size();
    if (size == 0 || size > kMaxRankedBytes) {
      throw ErrorException(make_error(ErrorCode::kData, "the token of rank {} has {} bytes, wanted 1 to {}", rank, size,
                                      kMaxRankedBytes));
    }
    const auto [it, is_new] = whole_words_.emplace(tokens[rank], first_id + static_cast<TokenId>(rank));
    if (!is_new) {
      throw ErrorException(make_error(ErrorCode::kData, "the tokens of ranks {} and {} have the same bytes",
                                      it->second - first_id, rank));
    }
  }
  for (unsigned byte = 0; byte < 256; ++byte) {
    const TokenId id = find_id(whole_words_, std::string(1, static_cast<char>(byte)));
    if (id < 0) throw ErrorException(make_error(ErrorCode::kData, "no token is the single byte 0x{:02x}", byte));
    initial_[0].bytes[byte] = id;
  }
}

void Bpe::add_ranked_merges(std::string_view token, uint32_t rank, TokenId id, BpeScratch& scratch) {
  scratch.ids.clear();
  append_initial(token, scratch.ids);
  std::vector<TokenId> symbols;
  merge(scratch, symbols);
  // Inside a longer text, the bytes of a token merge as they do alone. So only these two can give it.
  if (symbols.size() == 2) return add_merge(symbols[0], symbols[1], rank, id);
  // Merges of higher ranks may come first, and leave any two tokens.
  for (size_t cut = 1; cut < token.size(); ++cut) {
    const TokenId left = find_id(whole_words_, token.substr(0, cut));
    const TokenId right = left < 0 ? -1 : find_id(whole_words_, token.substr(cut));
    if (right >= 0) add_merge(left, right, rank, id);
  }
}

void Bpe::index_initial_symbols(const TokenMap& vocab) {
  constexpr std::string_view kHex = "0123456789ABCDEF";
  for (unsigned byte = 0; byte < 256; ++byte) {
    byte_tokens_[byte] = find_id(vocab, std::string{'<', '0', 'x', kHex[byte >> 4], kHex[byte & 15], '>'});
  }
  for (size_t variant = 0; variant < initial_.size(); ++variant) {
    const std::string_view prefix =
        (variant & kHasPrefix) != 0 ? config_.continuing_subword_prefix : std::string_view();
    const std::string_view suffix = (variant & kHasSuffix) != 0 ? config_.end_of_word_suffix : std::string_view();
    const bool is_used =
        ((variant & kHasPrefix) == 0 || !prefix.empty()) && ((variant & kHasSuffix) == 0 || !suffix.empty());
    if (!is_used) continue;
    InitialIds& ids = initial_[variant];
    for (unsigned byte = 0; config_.byte_level && byte < 256; ++byte) {
      const std::string_view spelling = byte_level_char(static_cast<unsigned char>(byte));
      ids.bytes[byte] = find_id(vocab, std::string(prefix).append(spelling).append(suffix));
    }
    if (config_.byte_level) continue;
    for (const auto& [token, id] : vocab) {
      std::string_view symbol = token;
      if (symbol.size() <= prefix.size() + suffix.size()) continue;
      if (!symbol.starts_with(prefix) || !symbol.ends_with(suffix)) continue;
      symbol = symbol.substr(prefix.size(), symbol.size() - prefix.size() - suffix.size());
      const DecodedUtf8 step = decode_utf8(symbol);
      if (step.valid && step.length == symbol.size()) ids.code_points.emplace(step.code_point, id);
    }
  }
}

void Bpe::add_merge(TokenId left, TokenId right, uint32_t rank, TokenId merged) {
  const uint64_t pair = pair_key(left, right);
  uint64_t at = mix_bits(pair) & merge_mask_;
  while (merges_[at].pair != UINT64_MAX && merges_[at].pair != pair) at = (at + 1) & merge_mask_;
  if (merges_[at].pair == UINT64_MAX) ++merge_count_;
  merges_[at] = {pair, rank, merged};
  if (merge_count_ * 2 <= merges_.size()) return;
  const std::vector<MergeEntry> old = std::exchange(merges_, std::vector<MergeEntry>(merges_.size() * 2));
  merge_mask_ = merges_.size() - 1;
  for (const MergeEntry& entry : old) {
    if (entry.pair == UINT64_MAX) continue;
    at = mix_bits(entry.pair) & merge_mask_;
    while (merges_[at].pair != UINT64_MAX) at = (at + 1) & merge_mask_;
    merges_[at] = entry;
  }
}

Bpe::MergeEntry Bpe::find_merge(TokenId left, TokenId right) const {
  const uint64_t pair = pair_key(left, right);
  uint64_t at = mix_bits(pair) & merge_mask_;
  while (merges_[at].pair != pair) {
    if (merges_[at].pair == UINT64_MAX) return {};
    at = (at + 1) & merge_mask_;
  }
  return merges_[at];
}

void Bpe::encode(std::string_view word, const char* readable_end, BpeScratch& scratch,
                 std::vector<TokenId>& out) const {
  if (!splits_at_metaspace_) return encode_segment(word, readable_end, scratch, out);
  // No merge crosses such a border, so the segments are independent and the result is that of the whole text.
  size_t begin = 0;
  size_t at = 0;
  while ((at = word.find(kMetaspace, at)) != std::string_view::npos) {
    const bool run_goes_on = at >= kMetaspace.size() && word.substr(0, at).ends_with(kMetaspace);
    if (at > begin && !run_goes_on) {
      encode_segment(word.substr(begin, at - begin), readable_end, scratch, out);
      begin = at;
    }
    at += kMetaspace.size();
  }
  encode_segment(word.substr(begin), readable_end, scratch, out);
}

void Bpe::encode_segment(std::string_view word, const char* readable_end, BpeScratch& scratch,
                         std::vector<TokenId>& out) const {
  if (word.empty()) return;
  if (word.size() > WordCache::kMaxWordBytes) return encode_uncached(word, scratch, out);
  const WordCache::Key key = WordCache::key_of(word, readable_end);
  if (scratch.cache.append_to(key, out)) return;
  const size_t start = out.size();
  encode_uncached(word, scratch, out);
  scratch.cache.remember(key, std::span(out).subspan(start));
}

void Bpe::encode_uncached(std::string_view word, BpeScratch& scratch, std::vector<TokenId>& out) const {
  if (config_.ignore_merges) {
    if (const auto it = whole_words_.find(word); it != whole_words_.end()) {
      out.push_back(it->second);
      return;
    }
  }
  scratch.ids.clear();
  append_initial(word, scratch.ids);
  merge(scratch, out);
}

void Bpe::merge(BpeScratch& scratch, std::vector<TokenId>& out) const {
  if (scratch.ids.size() <= kShortWordSymbols) {
    merge_short(scratch, out);
  } else {
    merge_long(scratch, out);
  }
}

TokenId Bpe::symbol_id(std::string_view symbol, size_t variant) const {
  const InitialIds& ids = initial_[variant];
  if (config_.byte_level) return ids.bytes[static_cast<unsigned char>(symbol[0])];
  const auto it = ids.code_points.find(decode_utf8(symbol).code_point);
  return it == ids.code_points.end() ? -1 : it->second;
}

bool Bpe::append_byte_tokens(std::string_view symbol, size_t variant, std::vector<TokenId>& out) const {
  const std::string_view prefix = (variant & kHasPrefix) != 0 ? config_.continuing_subword_prefix : std::string_view();
  const std::string_view suffix = (variant & kHasSuffix) != 0 ? config_.end_of_word_suffix : std::string_view();
  const size_t start = out.size();
  for (const std::string_view part : {prefix, symbol, suffix}) {
    for (const char c : part) {
      out.push_back(byte_tokens_[static_cast<unsigned char>(c)]);
      if (out.back() >= 0) continue;
      out.resize(start);
      return false;
    }
  }
  return true;
}

void Bpe::append_initial(std::string_view word, std::vector<TokenId>& out) const {
  if (is_plain_bytes_) {
    for (const char c : word) out.push_back(initial_[0].bytes[static_cast<unsigned char>(c)]);
    return;
  }
  // An unknown symbol is kept until the next known one, so byte tokens may overtake it: so does the reference.
  size_t unknown_pending = 0;
  const auto flush = [&] {
    out.insert(out.end(), unknown_pending, unk_id_);
    unknown_pending = 0;
  };
  for (bool is_first = true; !word.empty(); is_first = false) {
    const std::string_view symbol = word.substr(0, config_.byte_level ? 1 : decode_utf8(word).length);
    word.remove_prefix(symbol.size());
    size_t variant = 0;
    if (!is_first && !config_.continuing_subword_prefix.empty()) variant |= kHasPrefix;
    if (word.empty() && !config_.end_of_word_suffix.empty()) variant |= kHasSuffix;
    if (const TokenId id = symbol_id(symbol, variant); id >= 0) {
      flush();
      out.push_back(id);
      continue;
    }
    if (config_.byte_fallback && append_byte_tokens(symbol, variant, out)) continue;
    if (unk_id_ < 0) continue;
    if (!config_.fuse_unk) flush();
    unknown_pending = 1;
  }
  flush();
}

void Bpe::merge_short(BpeScratch& scratch, std::vector<TokenId>& out) const {
  struct Part {
    TokenId id;
    uint32_t rank;
    TokenId merged;
  };
  std::array<Part, kShortWordSymbols> parts;
  size_t count = scratch.ids.size();
  const auto refresh = [&](size_t i) {
    const MergeEntry merge = i + 1 < count ? find_merge(parts[i].id, parts[i + 1].id) : MergeEntry{};
    parts[i].rank = merge.rank;
    parts[i].merged = merge.merged;
  };
  for (size_t i = 0; i < count; ++i) parts[i].id = scratch.ids[i];
  for (size_t i = 0; i < count; ++i) refresh(i);
  while (count > 1) {
    size_t best = 0;
    for (size_t i = 1; i + 1 < count; ++i) {
      if (parts[i].rank < parts[best].rank) best = i;
    }
    if (parts[best].rank == kNoRank) break;
    parts[best].id = parts[best].merged;
    std::copy(parts.begin() + best + 2, parts.begin() + count, parts.begin() + best + 1);
    --count;
    refresh(best);
    if (best > 0) refresh(best - 1);
  }
  for (size_t i = 0; i < count; ++i) out.push_back(parts[i].id);
}

void Bpe::refresh_pair(BpeScratch& scratch, int32_t position) const {
  BpeScratch::Symbol& symbol = scratch.symbols[static_cast<size_t>(position)];
  const MergeEntry merge =
      symbol.next < 0 ? MergeEntry{} : find_merge(symbol.id, scratch.symbols[static_cast<size_t>(symbol.next)].id);
  symbol.rank = merge.rank;
  symbol.merged = merge.merged;
  if (merge.rank == kNoRank) return;
  scratch.heap.emplace_back(merge.rank, static_cast<uint32_t>(position));
  std::push_heap(scratch.heap.begin(), scratch.heap.end(), std::greater<>());
}

void Bpe::merge_long(BpeScratch& scratch, std::vector<TokenId>& out) const {
  auto& symbols = scratch.symbols;
  auto& heap = scratch.heap;
  const auto count = static_cast<int32_t>(scratch.ids.size());
  symbols.clear();
  heap.clear();
  for (int32_t i = 0; i < count; ++i) {
    symbols.push_back({scratch.ids[static_cast<size_t>(i)], kNoRank, -1, i - 1, i + 1 < count ? i + 1 : -1});
  }
  for (int32_t i = 0; i + 1 < count; ++i) refresh_pair(scratch, i);
  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end(), std::greater<>());
    const auto [rank, position] = heap.back();
    heap.pop_back();
    BpeScratch::Symbol& left = symbols[position];
    // An entry is stale once either of its symbols took part in another merge.
    if (left.next < 0 || left.rank != rank) continue;
    BpeScratch::Symbol& right = symbols[static_cast<size_t>(left.next)];
    left.id = left.merged;
    left.next = right.next;
    right.next = kDead;
    if (left.next >= 0) symbols[static_cast<size_t>(left.next)].previous = static_cast<int32_t>(position);
    refresh_pair(scratch, static_cast<int32_t>(position));
    if (left.previous >= 0) refresh_pair(scratch, left.previous);
  }
  for (int32_t i = 0; i >= 0; i = symbols[static_cast<size_t>(i)].next)
    out.push_back(symbols[static_cast<size_t>(i)].id);
}

}  // namespace millrace::text
