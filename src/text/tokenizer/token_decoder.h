#pragma once

#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/ids.h"
#include "text/tokenizer/regex.h"

namespace millrace::text {

/// The decoder of a tokenizer.json, compiled: every token's bytes are fixed at load, and text is their concatenation.
/// The one place that matters is the first token of a text, which may be spelt differently and lose leading characters.
class TokenDecoder {
 public:
  struct ByteLevel {};
  struct ByteFallback {};
  struct Fuse {};
  struct Replace {
    std::string from;  ///< when empty, `pattern` is looked for
    Regex pattern;
    std::string to;
  };
  /// Joins words with blanks; a token that continues a word begins with `prefix`.
  struct WordPiece {
    std::string prefix;
    bool cleanup = true;  ///< no blank before punctuation and English contractions
  };
  /// A token that ends a word ends in `suffix`, which stands for a blank.
  struct WordSuffix {
    std::string suffix;
  };
  struct Strip {
    std::string content;  ///< one character
    size_t start = 0;     ///< maximum at the start
  };
  struct Metaspace {
    std::string replacement;
    bool drops_first = true;  ///< at the start of a text it stands for nothing
  };
  struct JoinWithSpaces {};  ///< what a missing decoder means
  using Step =
      std::variant<ByteLevel, ByteFallback, Fuse, Replace, Strip, Metaspace, WordPiece, WordSuffix, JoinWithSpaces>;

  /// Throws ErrorException (kData) if a step cannot be compiled in its place.
  void compile(const std::vector<Step>& steps, const std::vector<std::string>& tokens);

  /// Returns the bytes of `id` inside a text; empty for ids outside the vocabulary. They may be part of a character.
  [[nodiscard]] std::string_view bytes(TokenId id) const;
  /// Returns the bytes of `id` as the first token of a text, before `strip_start`.
  [[nodiscard]] std::string_view first_bytes(TokenId id) const;
  /// Removes from the start of a text's bytes what Strip removes; `stripped` counts what earlier calls took.
  [[nodiscard]] std::string_view strip_start(std::string_view text, size_t& stripped) const;
  /// Returns whether `id` is one byte of a character, as <0xNN> tokens are. Neighbours of this kind are text together,
  /// or together are not UTF-8.
  [[nodiscard]] bool is_byte(TokenId id) const {
    return id >= 0 && static_cast<size_t>(id) < is_byte_.size() && is_byte_[static_cast<size_t>(id)];
  }
  /// Returns whether a blank at the end of a text stands for nothing.
  [[nodiscard]] bool drops_last_space() const { return drops_last_space_; }
  /// Returns whether a text's start may still hold something to strip.
  [[nodiscard]] bool may_strip(size_t stripped) const { return stripped < strip_.start; }

 private:
  struct Range {
    uint32_t begin = 0;
    uint32_t end = 0;
  };
  [[nodiscard]] std::string_view view(const std::vector<Range>& ranges, TokenId id) const;

  std::string storage_;
  std::vector<Range> ranges_;
  std::vector<Range> first_ranges_;  ///< empty if equal to ranges_
  std::vector<bool> is_byte_;
  bool drops_last_space_ = false;
  Strip strip_;
};

}  // namespace millrace::text
