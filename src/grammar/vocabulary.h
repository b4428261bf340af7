#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/ids.h"
#include "grammar/char_set.h"

namespace millrace::grammar {

/// The texts of a model's tokens as a tree of bytes, so that a common prefix is walked once. Shared by all grammars of
/// a model; immutable. Takes about 16 bytes per node: some 10 MB for 150,000 tokens. Where some byte that continues a
/// character has no token, tokens of parts of characters count as unused, since nothing may follow them.
///
/// A tag is a token that is markup to the model, such as <tool_call>. Its text in the tree begins with kTagByte, which
/// no character has. An Automaton reads it only where a literal spells the tag, and never as a part of a text.
class Vocabulary {
 public:
  /// Begins what the tree has for a tag. No byte of UTF-8.
  static constexpr char kTagByte = '\xFF';

  /// A tag in a text.
  struct TagInText {
    size_t begin;
    size_t end;
  };

  /// Takes the bytes of each token by id, and the ids that are tags. Other special tokens and unused ids have an empty
  /// text and are never legal.
  explicit Vocabulary(std::span<const std::string> texts, std::span<const TokenId> tags = {});

  /// Returns the number of ids, with or without a text.
  [[nodiscard]] uint32_t size() const { return size_; }
  /// Returns what the token adds to a text.
  [[nodiscard]] std::string_view text_of(TokenId token) const;
  /// Returns what an automaton reads of the token: its text, after kTagByte if it is a tag.
  [[nodiscard]] std::string_view read_text_of(TokenId token) const;
  [[nodiscard]] bool has_tags() const { return !tags_.empty(); }
  /// Returns where the text spells tags, by begin and end. They may overlap.
  [[nodiscard]] std::vector<TagInText> tags_in(std::string_view text) const;

  /// A node of the tree: a prefix of some token's text. The nodes of its subtree follow it, up to `end`.
  struct Node {
    uint8_t byte;     ///< the last byte of its text
    uint32_t length;  ///< of its text
    uint32_t end;
    uint32_t first_token;  ///< its first token; the next node's first token ends the list
  };
  [[nodiscard]] size_t node_count() const { return nodes_.size() - 1; }
  [[nodiscard]] const Node& node(size_t at) const { return nodes_[at]; }
  [[nodiscard]] std::span<const TokenId> tokens_of(size_t at) const {
    return std::span(tokens_).subspan(nodes_[at].first_token, nodes_[at + 1].first_token - nodes_[at].first_token);
  }
  /// Returns the tokens of the nodes in [begin, end).
  [[nodiscard]] std::span<const TokenId> tokens_between(size_t begin, size_t end) const {
    return std::span(tokens_).subspan(nodes_[begin].first_token, nodes_[end].first_token - nodes_[begin].first_token);
  }
  /// Returns the text of a token that begins with the node's text, as the tree has it.
  [[nodiscard]] std::string_view first_text(size_t at) const { return read_text_of(tokens_[nodes_[at].first_token]); }
  [[nodiscard]] size_t max_token_bytes() const { return max_token_bytes_; }
  /// Returns the characters that tokens can spell after any text: by a token each, or by a token for each byte.
  [[nodiscard]] const CharSet& spellable() const { return spellable_; }
  /// Returns whether tokens spell the text from each position that a token may lead to. Takes time where its characters
  /// are not all spellable().
  [[nodiscard]] bool can_spell(std::string_view text) const;
  /// Returns whether a token is in the tree.
  [[nodiscard]] bool is_used(TokenId token) const;

 private:
  [[nodiscard]] bool find_spellable(std::span<const std::string> texts);

  uint32_t size_;
  size_t max_token_bytes_ = 0;
  std::vector<Node> nodes_;      // and one after the last
  std::vector<TokenId> tokens_;  // by text
  std::string bytes_;            // all texts, as the tree has them
  std::vector<bool> is_tag_;     // [size]
  std::vector<std::string> tags_;
  CharSet spellable_;
  bool cuts_characters_;         // tokens of parts of characters are used
  std::vector<uint32_t> begin_;  // [size + 1], of each text in bytes_
};

}  // namespace millrace::grammar
