#pragma once

#include <string>
#include <string_view>
#include <variant>
#include <vector>

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
  using Step = std::variant<NormalForm, Prepend, Replace, Lowercase, Strip>;

  void add(Step step) { steps_.push_back(std::move(step)); }
  [[nodiscard]] bool is_identity() const { return steps_.empty(); }
  /// Rewrites `text`, valid UTF-8, in place.
  void apply(std::string& text, RegexScratch& scratch) const;

 private:
  std::vector<Step> steps_;
};

/// Every occurrence of the non-empty `from`, left to right.
[[nodiscard]] std::string replace_all(std::string_view text, std::string_view from, std::string_view to);
/// Every match of `pattern`; `to` is taken as it is.
[[nodiscard]] std::string replace_all(std::string_view text, const Regex& pattern, std::string_view to,
                                      RegexScratch& scratch);

}  // namespace millrace::text
