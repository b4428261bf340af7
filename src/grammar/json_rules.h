#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "grammar/expression.h"
#include "grammar/whole_number.h"

namespace millrace::grammar {

/// The whole numbers from `low` to `high`, as JSON writes them.
struct IntegerRange {
  WholeNumber low;
  WholeNumber high;
};
/// Bounds without a fraction. A missing bound allows the digits of 64 bits, or as many as the other bound has.
struct NumberRange {
  std::optional<WholeNumber> low;
  std::optional<WholeNumber> high;
  bool excludes_low = false;  ///< the bound itself is excluded
  bool excludes_high = false;
};

/// The parts of JSON (RFC 8259) as rules of one Definition, made on first use. White space between tokens is one blank,
/// or a line feed with bounded indentation, so that a model cannot write space for ever. Numbers have bounded digits.
/// Lives while one schema is read.
class JsonRules {
 public:
  explicit JsonRules(Definition& definition) : definition_(definition) {}

  [[nodiscard]] ExpressionPtr space();
  [[nodiscard]] ExpressionPtr value();
  [[nodiscard]] ExpressionPtr object();
  [[nodiscard]] ExpressionPtr array();
  [[nodiscard]] ExpressionPtr string();
  [[nodiscard]] ExpressionPtr number();
  [[nodiscard]] ExpressionPtr integer();
  /// Returns a string of `min` to `max` characters.
  [[nodiscard]] ExpressionPtr string_of(uint32_t min, std::optional<uint32_t> max);
  /// Returns a member name that differs from all `names`.
  [[nodiscard]] ExpressionPtr other_key(const std::vector<std::string_view>& names);

  /// Returns a character of the set in a JSON string, in all spellings except a \u that has a shorter one.
  [[nodiscard]] static ExpressionPtr string_char(const CharSet& chars);
  [[nodiscard]] static ExpressionPtr integer_between(const IntegerRange& range);
  /// Returns the range with missing bounds filled in.
  [[nodiscard]] static IntegerRange whole_range(const NumberRange& range);
  [[nodiscard]] static ExpressionPtr number_between(const NumberRange& range);
  [[nodiscard]] static ExpressionPtr quoted(std::string_view text);

 private:
  [[nodiscard]] ExpressionPtr any_char();
  [[nodiscard]] ExpressionPtr rest_of_other_key(const std::vector<std::string_view>& rests);
  /// Returns the rule of this name. `make` makes it on first use.
  template <class Make>
  ExpressionPtr rule(std::optional<RuleIndex>& index, std::string_view name, const Make& make);

  Definition& definition_;
  std::optional<RuleIndex> space_, value_, object_, array_, string_, number_, integer_, char_;
};

}  // namespace millrace::grammar
