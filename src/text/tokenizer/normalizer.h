#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "text/tokenizer/char_map.h"
#include "text/tokenizer/regex.h"
#include "text/unicode.h"

namespace millrace::text {

/// The normaliser of a tokenizer.json: its steps, flattened, in order. Immutable; `apply` is thread-safe.
class Normalizer {
 public:
  struct Prepend {
    std::string text;
  };
  struct Replace {
    Regex pattern;
    std::string literal;  ///< when not empty, what to look for instead of `pattern`
    std::string content;
  };
  struct Lowercase {};
  struct Strip {
    bool left = true;
    bool right = true;
  };
  /// The cleaning of BERT's first tokenizer.
  struct Bert {
    bool clean_text = true;  ///< control characters go, any white space becomes a blank
    bool spaces_around_chinese = true;
    bool strip_accents = true;
    bool lowercase = true;
  };
  struct StripAccents {};
  /// The rules of SentencePiece's "nmt": some control characters go, others become blanks.
  struct Nmt {};
  /// Writes each byte as one character of the byte-level alphabet.
  struct ByteLevel {};
  using Precompiled = std::shared_ptr<const CharMap>;
  using Step =
      std::variant<NormalForm, Prepend, Replace, Lowercase, Strip, Bert, StripAccents, Nmt, ByteLevel, Precompiled>;

  void add(Step step) { steps_.push_back(std::move(step)); }
  [[nodiscard]] bool is_identity() const { return steps_.empty(); }
  /// Rewrites `text`, valid UTF-8, in place. Returns false if its first characters are gone, so that what is left does
  /// not begin the text.
  bool apply(std::string& text, RegexScratch& scratch) const;

 private:
  std::vector<Step> steps_;
};

/// Replaces every occurrence of the non-empty `from`, left to right.
[[nodiscard]] std::string replace_all(std::string_view text, std::string_view from, std::string_view to);
/// Replaces every match of `pattern`; `to` is taken as it is.
[[nodiscard]] std::string replace_all(std::string_view text, const Regex& pattern, std::string_view to,
                                      RegexScratch& scratch);

}  // namespace millrace::text
