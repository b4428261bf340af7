#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/ids.h"

namespace millrace::text {

/// How a tokenizer came to a token: from its model, or as an added token, which no merge makes.
enum class TokenKind : uint8_t { kPlain, kAdded, kSpecial };

/// One entry of a tokenizer.json's added_tokens.
struct AddedToken {
  TokenId id = -1;
  std::string content;
  bool single_word = false;
  bool lstrip = false;
  bool rstrip = false;
  bool normalized = false;
  bool special = false;

  [[nodiscard]] TokenKind kind() const { return special ? TokenKind::kSpecial : TokenKind::kAdded; }
};

/// Finds added tokens in text, leftmost-longest, in one pass over a byte trie. Immutable after the last `add`.
class AddedTokenMatcher {
 public:
  /// A part of the text: an added token, or (id -1) what lies between two.
  struct Part {
    size_t begin = 0;
    size_t end = 0;
    TokenId id = -1;
  };

  AddedTokenMatcher();
  /// `pattern` is what to look for: the content, or its normalised form.
  void add(const AddedToken& token, std::string_view pattern);
  [[nodiscard]] bool empty() const { return tokens_.empty(); }
  /// Appends the parts of `text`, in order and without empty gaps. `skip_special`: special tokens count as text.
  void split(std::string_view text, bool skip_special, std::vector<Part>& parts) const;

 private:
  static constexpr uint32_t kNone = UINT32_MAX;
  struct Node {
    uint32_t first_child = kNone;
    uint32_t next_sibling = kNone;
    uint32_t token = kNone;  ///< index into tokens_
    unsigned char byte = 0;
  };

  uint32_t child(uint32_t node, unsigned char byte) const;
  /// Returns the longest token that starts at `at`, and sets its end.
  uint32_t longest_at(std::string_view text, size_t at, size_t& end) const;

  std::vector<AddedToken> tokens_;
  std::vector<Node> nodes_;
  std::array<uint32_t, 256> roots_;
};

}  // namespace millrace::text
