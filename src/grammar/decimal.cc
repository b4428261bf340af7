#include "grammar/decimal.h"

#include <algorithm>
#include <charconv>
#include <cstdint>

namespace millrace::grammar {
namespace {

/// Exceeds every count of digits that a number may have, and is far from an overflow.
constexpr int64_t kLargestExponent = int64_t{1} << 40;

int64_t read_exponent(std::string_view text) {
  const bool is_negative = text.starts_with('-');
  if (is_negative || text.starts_with('+')) text.remove_prefix(1);
  int64_t exponent = kLargestExponent;
  const auto parsed = std::from_chars(text.data(), text.data() + text.size(), exponent);
  if (parsed.ec != std::errc()) exponent = kLargestExponent;
  exponent = std::min(exponent, kLargestExponent);
  return is_negative ? -exponent : exponent;
}

}  // namespace

std::strong_ordering Decimal::operator<=>(const Decimal& other) const {
  if (is_negative != other.is_negative) return other.is_negative <=> is_negative;
  if (is_negative) return other.negated() <=> negated();
  if (whole.size() != other.whole.size()) return whole.size() <=> other.whole.size();
  if (whole != other.whole) return whole <=> other.whole;
  return fraction <=> other.fraction;
}

std::optional<Decimal> parse_decimal(std::string_view json) {
  Decimal decimal;
  decimal.is_negative = json.starts_with('-');
  if (decimal.is_negative) json.remove_prefix(1);
  const size_t exponent_at = std::min(json.find_first_of("eE"), json.size());
  const int64_t exponent = exponent_at == json.size() ? 0 : read_exponent(json.substr(exponent_at + 1));
  const std::string_view mantissa = json.substr(0, exponent_at);
  const size_t point = std::min(mantissa.find('.'), mantissa.size());
  std::string digits(mantissa.substr(0, point));
  if (point < mantissa.size()) digits += mantissa.substr(point + 1);
  int64_t whole_digits = static_cast<int64_t>(point) + exponent;
  const size_t zeros = std::min(digits.find_first_not_of('0'), digits.size());
  digits.erase(0, zeros);
  whole_digits -= static_cast<int64_t>(zeros);
  digits.erase(digits.find_last_not_of('0') + 1);
  if (digits.empty()) return Decimal{};
  if (whole_digits > static_cast<int64_t>(Decimal::kMaxWholeDigits)) return std::nullopt;
  if (static_cast<int64_t>(digits.size()) - whole_digits > static_cast<int64_t>(Decimal::kMaxFractionDigits)) {
    return std::nullopt;
  }
  if (whole_digits <= 0) {
    decimal.fraction = std::string(static_cast<size_t>(-whole_digits), '0') + digits;
    return decimal;
  }
  const auto count = static_cast<size_t>(whole_digits);
  decimal.whole = digits.substr(0, count);
  decimal.whole.resize(count, '0');
  if (digits.size() > count) decimal.fraction = digits.substr(count);
  return decimal;
}

}  // namespace millrace::grammar
