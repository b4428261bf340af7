#pragma once

#include <optional>
#include <vector>

#include "grammar/decimal.h"
#include "grammar/text_language.h"

namespace millrace::grammar {

/// Conditions on a number. Whole numbers are written without a point where numbers with a fraction are excluded.
struct NumberConditions {
  struct Multiple {
    Decimal divisor;
    bool is_negated = false;
  };
  std::optional<Decimal> low;
  std::optional<Decimal> high;
  bool excludes_low = false;  ///< the bound itself is excluded
  bool excludes_high = false;
  std::vector<Multiple> multiples;
  std::vector<Decimal> excluded;
  bool allows_whole = true;
  bool allows_fraction = true;

  [[nodiscard]] bool is_bounded() const { return low || high; }
};

/// Returns the numbers that satisfy the conditions, as JSON writes them without an exponent. Digits are bounded: 18
/// before and after the point, or more where a bound has more. Throws an ErrorException without a position if a divisor
/// has too many digits, and as TextLanguage does.
[[nodiscard]] TextLanguage number_language(const NumberConditions& conditions, ReadWork& work);

/// Returns whether a number is a multiple of a divisor, exactly. Throws as number_language() does.
[[nodiscard]] bool is_multiple_of(const Decimal& number, const Decimal& divisor);

}  // namespace millrace::grammar
