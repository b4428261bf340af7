#pragma once

#include <compare>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

namespace millrace::grammar {

/// A number of JSON, exact: digits before and after the point, without needless zeros.
struct Decimal {
  static constexpr size_t kMaxWholeDigits = 64;
  static constexpr size_t kMaxFractionDigits = 512;

  std::string whole = "0";
  std::string fraction;      ///< empty for a whole number
  bool is_negative = false;  ///< never of 0

  [[nodiscard]] bool is_zero() const { return whole == "0" && fraction.empty(); }
  [[nodiscard]] Decimal negated() const { return {whole, fraction, !is_negative && !is_zero()}; }
  [[nodiscard]] bool operator==(const Decimal&) const = default;
  [[nodiscard]] std::strong_ordering operator<=>(const Decimal& other) const;
};

/// Parses the text of a JSON number. Returns nothing beyond the limits of digits.
[[nodiscard]] std::optional<Decimal> parse_decimal(std::string_view json);

}  // namespace millrace::grammar
