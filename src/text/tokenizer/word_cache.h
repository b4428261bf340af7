#pragma once

#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>
#include <vector>

#include "base/hash.h"
#include "base/ids.h"

namespace millrace::text {

/// Remembers the tokens of short words: a direct-mapped table, one cache line per word, the newest word wins its place.
/// Owned by one encode call at a time.
class WordCache {
 public:
  static constexpr size_t kMaxWordBytes = 23;
  static constexpr size_t kMaxTokens = 9;

  /// A word zero-padded to three machine words; its length is the last byte.
  struct Key {
    uint64_t words[3];
    friend bool operator==(const Key& a, const Key& b) {
      return ((a.words[0] ^ b.words[0]) | (a.words[1] ^ b.words[1]) | (a.words[2] ^ b.words[2])) == 0;
    }
  };

  WordCache() : entries_(kEntries) {}

  /// `readable_end` is how far reading beyond the word is allowed. Requires 1 to kMaxWordBytes bytes.
  static Key key_of(std::string_view word, const char* readable_end) {
    alignas(8) unsigned char bytes[24] = {};
    if (readable_end - word.data() >= 24) {
      std::memcpy(bytes, word.data(), 24);
    } else {
      std::memcpy(bytes, word.data(), word.size());
    }
    Key key;
    std::memcpy(key.words, bytes, 24);
    for (size_t i = 0; i < 3; ++i) {
      const size_t used = word.size() > 8 * i ? word.size() - 8 * i : 0;
      if (used < 8) key.words[i] &= (uint64_t{1} << (8 * used)) - 1;
    }
    key.words[2] |= uint64_t{word.size()} << 56;
    return key;
  }

  /// Appends the tokens of a remembered word.
  bool append_to(const Key& key, std::vector<TokenId>& out) const {
    const Entry& entry = entries_[slot(key)];
    if (!(entry.key == key)) return false;
    out.insert(out.end(), entry.ids, entry.ids + entry.count);
    return true;
  }

  void remember(const Key& key, std::span<const TokenId> ids) {
    if (ids.size() > kMaxTokens) return;
    Entry& entry = entries_[slot(key)];
    entry.key = key;
    entry.count = static_cast<uint32_t>(ids.size());
    std::memcpy(entry.ids, ids.data(), ids.size_bytes());
  }

 private:
  static constexpr int kLogEntries = 16;
  static constexpr size_t kEntries = size_t{1} << kLogEntries;

  struct alignas(64) Entry {
    Key key{};
    uint32_t count = 0;
    TokenId ids[kMaxTokens] = {};
  };
  static_assert(sizeof(Entry) == 64);

  static size_t slot(const Key& key) { return hash_bytes(std::as_bytes(std::span(key.words))) >> (64 - kLogEntries); }

  std::vector<Entry> entries_;
};

}  // namespace millrace::text
