#include "text/tokenizer/unigram.h"

#include <algorithm>
#include <limits>

#include <fmt/format.h>

#include "base/utf8.h"

namespace millrace::text {
namespace {

/// How much worse than the worst token an unknown character is.
constexpr double kUnknownPenalty = 10.0;

}  // namespace

Unigram::Unigram(const Config& config) : unk_id_(config.unk_id), byte_fallback_(config.byte_fallback) {
  double lowest = std::numeric_limits<double>::infinity();
  for (size_t id = 0; id < config.vocab.size(); ++id) {
    const auto& [token, score] = config.vocab[id];
    ids_.insert_or_assign(token, static_cast<TokenId>(id));
    scores_.push_back(score);
    lowest = std::min(lowest, score);
  }
  unknown_score_ = lowest - kUnknownPenalty;
  for (unsigned byte = 0; byte < 256; ++byte) byte_tokens_[byte] = find_id(ids_, fmt::format("<0x{:02X}>", byte));
  build_trie();
}

void Unigram::build_trie() {
  std::vector<std::pair<std::string_view, TokenId>> tokens(ids_.begin(), ids_.end());
  std::ranges::sort(tokens);
  if (!tokens.empty() && tokens.front().first.empty()) tokens.erase(tokens.begin());
  // Each entry is a node whose tokens are [begin, end) and share their first `depth` bytes.
  struct Pending {
    size_t begin;
    size_t end;
    size_t depth;
  };
  std::vector<Pending> pending = {{0, tokens.size(), 0}};
  trie_.emplace_back();
  for (size_t node = 0; node < pending.size(); ++node) {
    auto [begin, end, depth] = pending[node];
    if (begin < end && tokens[begin].first.size() == depth && depth > 0) trie_[node].id = tokens[begin++].second;
    trie_[node].first_child = static_cast<uint32_t>(trie_.size());
    while (begin < end) {
      const char byte = tokens[begin].first[depth];
      size_t next = begin;
      while (next < end && tokens[next].first[depth] == byte) ++next;
      trie_.push_back({.first_child = 0, .child_count = 0, .id = -1, .byte = static_cast<unsigned char>(byte)});
      pending.push_back({begin, next, depth + 1});
      ++trie_[node].child_count;
      begin = next;
    }
  }
}

uint32_t Unigram::child(uint32_t node, unsigned char byte) const {
  const auto first = trie_.begin() + trie_[node].first_child;
  const auto last = first + trie_[node].child_count;
  const auto found = std::ranges::lower_bound(first, last, byte, {}, &TrieNode::byte);
  return found == last || found->byte != byte ? kNone : static_cast<uint32_t>(found - trie_.begin());
}

void Unigram::encode(std::string_view word, const char* readable_end, WordCache& cache, std::vector<UnigramNode>& nodes,
                     std::vector<TokenId>& out) const {
  if (word.empty()) return;
  if (word.size() > WordCache::kMaxWordBytes) return encode_uncached(word, nodes, out);
  const WordCache::Key key = WordCache::key_of(word, readable_end);
  if (cache.append_to(key, out)) return;
  const size_t start = out.size();
  encode_uncached(word, nodes, out);
  cache.remember(key, std::span(out).subspan(start));
}

void Unigram::extend(std::string_view word, size_t begin, std::vector<UnigramNode>& nodes) const {
  const double so_far = nodes[begin].score;
  const size_t character_end = begin + decode_utf8(word.substr(begin)).length;
  // Equal sums keep the segmentation whose last token starts first.
  const auto offer = [&](size_t end, double score, TokenId id) {
    UnigramNode& target = nodes[end];
    if (!target.is_reached || score > target.score) target = {score, begin, id, true};
  };
  bool has_character = false;
  uint32_t node = 0;
  for (size_t at = begin; at < word.size();) {
    node = child(node, static_cast<unsigned char>(word[at]));
    if (node == kNone) break;
    ++at;
    const TokenId id = trie_[node].id;
    if (id < 0) continue;
    offer(at, so_far + scores_[static_cast<size_t>(id)], id);
    has_character = has_character || at == character_end;
  }
  if (!has_character) offer(character_end, so_far + unknown_score_, unk_id_);
}

void Unigram::encode_uncached(std::string_view word, std::vector<UnigramNode>& nodes, std::vector<TokenId>& out) const {
  nodes.assign(word.size() + 1, {});
  for (size_t begin = 0; begin < word.size(); begin += decode_utf8(word.substr(begin)).length) {
    extend(word, begin, nodes);
  }
  // The way is known from its end: collect the ends of its tokens, then walk forward.
  std::vector<size_t> ends;
  for (size_t end = word.size(); end > 0; end = nodes[end].begin) ends.push_back(end);
  std::ranges::reverse(ends);
  for (size_t i = 0; i < ends.size(); ++i) {
    const UnigramNode& node = nodes[ends[i]];
    if (node.id != unk_id_) {
      out.push_back(node.id);
      continue;
    }
    while (i + 1 < ends.size() && nodes[ends[i + 1]].id == unk_id_) ++i;
    append_unknown(word.substr(node.begin, ends[i] - node.begin), out);
  }
}

void Unigram::append_unknown(std::string_view text, std::vector<TokenId>& out) const {
  if (const TokenId id = find_id(ids_, text); id >= 0) {
    out.push_back(id);
    return;
  }
  const auto byte_token = [this](char c) { return byte_tokens_[static_cast<unsigned char>(c)]; };
  if (byte_fallback_ && std::ranges::all_of(text, [&](char c) { return byte_token(c) >= 0; })) {
    for (const char c : text) out.push_back(byte_token(c));
  } else if (unk_id_ >= 0) {
    out.push_back(unk_id_);
  }
}

}  // namespace millrace::text
