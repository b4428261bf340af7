#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "grammar/expression.h"
#include "grammar/whole_number.h"

namespace millrace::grammar {

/// Whole numbers from `low` to `high`, as JSON writes them.
struct IntegerRange {
  WholeNumber low;
  WholeNumber high;
};
/// Bounds without a fraction. One that is left out leaves the digits that 64 bits hold, or more if the other bound has
/// as many.
struct NumberRange {
  std::optional<WholeNumber> low;
  std::optional<WholeNumber> high;
  bool excludes_low = false;  ///< the bound itself is excluded
  bool excludes_high = false;
};

/// The parts of JSON (RFC 8259) as rules of one Definition, made when they are asked for first. Where a writer may put
/// space, behind brackets, commas and colons and before closing brackets, there may be one blank, or a line's end and
/// some indentation: without a bound a model might write space for ever. Numbers have bounds to their digits for the
/// same reason.
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
  /// A string of so many characters.
  [[nodiscard]] ExpressionPtr string_of(uint32_t min, std::optional<uint32_t> max);
  /// A string, as the key of a member, that is none of `names`.
  [[nodiscard]] ExpressionPtr other_key(const std::vector<std::string_view>& names);

  /// One character of a string out of a set, in all its spellings but \u of what has a shorter one.
  [[nodiscard]] static ExpressionPtr string_char(const CharSet& chars);
  [[nodiscard]] static ExpressionPtr integer_between(const IntegerRange& range);
  /// What the bounds that are left out become.
  [[nodiscard]] static IntegerRange whole_range(const NumberRange& range);
  [[nodiscard]] static ExpressionPtr number_between(const NumberRange& range);
  [[nodiscard]] static ExpressionPtr quoted(std::string_view text);

 private:
  [[nodiscard]] ExpressionPtr any_char();
  [[nodiscard]] ExpressionPtr rest_of_other_key(const std::vector<std::string_view>& rests);
  /// The rule of this name, made by `make` when it is missing.
  template <class Make>
  ExpressionPtr rule(std::optional<RuleIndex>& index, std::string_view name, const Make& make);

  Definition& definition_;
  std::optional<RuleIndex> space_, value_, object_, array_, string_, number_, integer_, char_;
};

}  // namespace millrace::grammar
