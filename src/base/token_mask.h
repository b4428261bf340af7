#pragma once

#include <bit>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "base/ids.h"

namespace millrace {

/// A set of tokens: one bit per id, from the lowest bit of the first word.
class TokenMask {
 public:
  TokenMask() = default;
  /// Makes an empty set for ids below `vocab`.
  explicit TokenMask(uint32_t vocab) : words_(word_count(vocab)) {}
  explicit TokenMask(std::vector<uint32_t> words) : words_(std::move(words)) {}

  [[nodiscard]] static size_t word_count(uint32_t vocab) { return (size_t{vocab} + kBits - 1) / kBits; }
  void add(TokenId token) {
    words_[static_cast<size_t>(token) / kBits] |= 1u << (static_cast<uint32_t>(token) % kBits);
  }
  void remove(TokenId token) {
    words_[static_cast<size_t>(token) / kBits] &= ~(1u << (static_cast<uint32_t>(token) % kBits));
  }
  void add(const TokenMask& other) {
    for (size_t i = 0; i < words_.size(); ++i) words_[i] |= other.words_[i];
  }
  [[nodiscard]] bool contains(TokenId token) const {
    const size_t word = static_cast<size_t>(token) / kBits;
    return token >= 0 && word < words_.size() && ((words_[word] >> (static_cast<uint32_t>(token) % kBits)) & 1) != 0;
  }
  [[nodiscard]] size_t count() const {
    size_t count = 0;
    for (const uint32_t word : words_) count += static_cast<size_t>(std::popcount(word));
    return count;
  }
  /// Returns the lowest ids of the set, at most `limit`.
  [[nodiscard]] std::vector<TokenId> members(size_t limit) const {
    std::vector<TokenId> members;
    for (size_t i = 0; i < words_.size(); ++i) {
      for (uint32_t rest = words_[i]; rest != 0; rest &= rest - 1) {
        if (members.size() == limit) return members;
        members.push_back(static_cast<TokenId>(i * kBits + static_cast<size_t>(std::countr_zero(rest))));
      }
    }
    return members;
  }
  [[nodiscard]] bool empty() const { return count() == 0; }
  [[nodiscard]] std::span<const uint32_t> words() const { return words_; }
  friend bool operator==(const TokenMask&, const TokenMask&) = default;

 private:
  static constexpr uint32_t kBits = 32;
  std::vector<uint32_t> words_;
};

}  // namespace millrace
