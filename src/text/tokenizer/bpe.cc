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
/// Up to here a scan for the lowest rank beats the heap.
constexpr size_t kShortWordSymbols = 32;

uint64_t pair_key(TokenId left, TokenId right) {
  return (uint64_t{static_cast<uint32_t>(left)} << 32) | static_cast<uint32_t>(right);
}

/// Whether U+2581 follows another character anywhere in `token`.
bool crosses_into_metaspace(std::string_view token) {
  size_t at = 0;
  while ((at = token.find(kMetaspace, at)) != std::string_view::npos) {
    if (at > 0 && !token.substr(0, at).ends_with(kMetaspace)) return true;
    at += kMetaspace.size();
  }
  return false;
}

TokenId find_id(const TokenMap& vocab, std::string_view token) {
  const auto it = vocab.find(token);
  return it == vocab.end() ? -1 : it->second;
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
    joined.assign(merges[i].first).append(merges[i].second);
    crosses = crosses || crosses_into_metaspace(joined);
    add_merge(require_id(vocab, merges[i].first), require_id(vocab, merges[i].second), static_cast<uint32_t>(i),
              require_id(vocab, joined));
  }
  if (!config_.unk_token.empty()) unk_id_ = find_id(vocab, config_.unk_token);
  index_initial_symbols(vocab);
  splits_at_metaspace_ = !config_.byte_level && !config_.ignore_merges && !crosses && find_id(vocab, kMetaspace) >= 0;
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

void Bpe::index_initial_symbols(const TokenMap& vocab) {
  byte_ids_.fill(-1);
  constexpr std::string_view kHex = "0123456789ABCDEF";
  has_all_byte_tokens_ = true;
  for (unsigned byte = 0; byte < 256; ++byte) {
    std::string spelling;
    if (config_.byte_level) {
      spelling = byte_level_char(static_cast<unsigned char>(byte));
    } else {
      spelling = {'<', '0', 'x', kHex[byte >> 4], kHex[byte & 15], '>'};
    }
    byte_ids_[byte] = find_id(vocab, spelling);
    if (byte_ids_[byte] < 0) has_all_byte_tokens_ = false;
  }
  if (config_.byte_level) return;
  for (const auto& [token, id] : vocab) {
    const DecodedUtf8 step = decode_utf8(token);
    if (step.valid && step.length == token.size()) code_point_ids_.emplace(step.code_point, id);
  }
}

void Bpe::add_merge(TokenId left, TokenId right, uint32_t rank, TokenId merged) {
  const uint64_t pair = pair_key(left, right);
  uint64_t at = mix_bits(pair) & merge_mask_;
  while (merges_[at].pair != UINT64_MAX && merges_[at].pair != pair) at = (at + 1) & merge_mask_;
  merges_[at] = {pair, rank, merged};
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
  if (scratch.ids.size() <= kShortWordSymbols) {
    merge_short(scratch, out);
  } else {
    merge_long(scratch, out);
  }
}

void Bpe::append_initial(std::string_view word, std::vector<TokenId>& out) const {
  if (!config_.byte_level) return append_initial_code_points(word, out);
  if (has_all_byte_tokens_) {
    for (const char c : word) out.push_back(byte_ids_[static_cast<unsigned char>(c)]);
    return;
  }
  bool unknown_pending = false;
  for (const char c : word) {
    const TokenId id = byte_ids_[static_cast<unsigned char>(c)];
    if (id >= 0) {
      out.push_back(id);
    } else if (unk_id_ >= 0 && !(unknown_pending && config_.fuse_unk)) {
      out.push_back(unk_id_);
    }
    unknown_pending = id < 0;
  }
}

void Bpe::append_initial_code_points(std::string_view word, std::vector<TokenId>& out) const {
  // An unknown symbol is held until the next known one, so byte tokens may overtake it: so does the reference.
  size_t unknown_pending = 0;
  const auto flush = [&] {
    out.insert(out.end(), unknown_pending, unk_id_);
    unknown_pending = 0;
  };
  while (!word.empty()) {
    const DecodedUtf8 step = decode_utf8(word);
    const std::string_view symbol = word.substr(0, step.length);
    word.remove_prefix(step.length);
    const auto it = code_point_ids_.find(step.code_point);
    if (it != code_point_ids_.end()) {
      flush();
      out.push_back(it->second);
      continue;
    }
    const auto byte_id = [&](char c) { return byte_ids_[static_cast<unsigned char>(c)]; };
    if (config_.byte_fallback &&
        (has_all_byte_tokens_ || std::all_of(symbol.begin(), symbol.end(), [&](char c) { return byte_id(c) >= 0; }))) {
      for (const char c : symbol) out.push_back(byte_id(c));
      continue;
    }
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
