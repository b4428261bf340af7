#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/code_point_set.h"

namespace millrace::text {

/// Reads Oniguruma's character classes: bracket expressions with nesting, `&&` and POSIX names, and class escapes. One
/// per pattern, which outlives it.
class RegexClassParser {
 public:
  /// Names PCRE2's spellings of the properties that a class mentions; a bracket expression is short in terms of them.
  using Items = std::vector<std::string>;

  explicit RegexClassParser(std::string_view pattern) : pattern_(pattern) {}

  /// Reads the bracket expression whose content starts at `at`, and moves `at` after it. With `any_case`, a character
  /// stands for its other cases too. Throws ErrorException (kData).
  [[nodiscard]] CodePointSet bracket(size_t& at, bool any_case, Items& items, int depth = 0) const;
  /// Reads the class escape at `at`, such as `\s` or `\p{Han}`, and moves `at` after it; nothing if there is none.
  [[nodiscard]] std::optional<CodePointSet> escape(size_t& at, Items& items) const;

 private:
  struct Element;

  [[noreturn]] void fail(std::string_view reason) const;
  [[nodiscard]] CodePointSet property(std::string_view name, Items& items) const;
  [[nodiscard]] std::optional<CodePointSet> posix(size_t& at, Items& items) const;
  [[nodiscard]] Element element(size_t& at, bool any_case, Items& items, int depth) const;
  [[nodiscard]] char32_t character(size_t& at) const;
  [[nodiscard]] char32_t escaped_character(size_t& at) const;
  [[nodiscard]] char32_t number(size_t& at, size_t max_digits, uint32_t base) const;

  std::string_view pattern_;
};

}  // namespace millrace::text
