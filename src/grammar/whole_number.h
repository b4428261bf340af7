#pragma once

#include <compare>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

namespace millrace::grammar {

/// A whole number of at most kMaxDigits digits, exact where 64 bits are not enough.
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
/// Of a number above 0.
[[nodiscard]] std::string digits_before(std::string digits);

struct RoundedNumber {
  WholeNumber number;
  bool had_fraction = false;
};
/// Rounds a number as JSON writes it to a whole one, up or down. Nothing if it has more than kMaxDigits digits.
[[nodiscard]] std::optional<RoundedNumber> round_number(std::string_view json, bool up);

}  // namespace millrace::grammar
