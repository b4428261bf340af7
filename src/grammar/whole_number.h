#pragma once

#include <compare>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

namespace millrace::grammar {

/// A whole number of at most kMaxDigits digits, exact beyond 64 bits.
struct WholeNumber {
  static constexpr size_t kMaxDigits = 64;

  std::string digits = "0";  ///< of the magnitude, without needless zeros
  bool is_negative = false;  ///< never of 0

  [[nodiscard]] WholeNumber next() const;
  [[nodiscard]] WholeNumber previous() const;
  [[nodiscard]] bool operator==(const WholeNumber&) const = default;
  [[nodiscard]] std::strong_ordering operator<=>(const WholeNumber& other) const;
};

/// Compares numbers by their digits.
[[nodiscard]] std::strong_ordering compare_digits(std::string_view left, std::string_view right);
[[nodiscard]] std::string digits_after(std::string digits);
/// Returns the digits of the number that precedes one above 0.
[[nodiscard]] std::string digits_before(std::string digits);

struct RoundedNumber {
  WholeNumber number;
  bool had_fraction = false;
};
/// Rounds a JSON number up or down to a whole one. Returns nothing beyond kMaxDigits digits.
[[nodiscard]] std::optional<RoundedNumber> round_number(std::string_view json, bool up);

}  // namespace millrace::grammar
