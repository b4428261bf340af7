#include "grammar/whole_number.h"

#include <algorithm>
#include <charconv>

namespace millrace::grammar {
namespace {

/// Far beyond every digit that a number can have here, and far from an overflow.
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

WholeNumber make_number(std::string digits, bool is_negative) {
  const bool is_zero = digits == "0";
  return {std::move(digits), is_negative && !is_zero};
}

}  // namespace

std::strong_ordering compare_digits(std::string_view left, std::string_view right) {
  if (left.size() != right.size()) return left.size() <=> right.size();
  return left <=> right;
}

std::string digits_after(std::string digits) {
  size_t at = digits.size();
  while (at > 0 && digits[at - 1] == '9') digits[--at] = '0';
  if (at == 0) return "1" + digits;
  ++digits[at - 1];
  return digits;
}

std::string digits_before(std::string digits) {
  size_t at = digits.size();
  while (digits[at - 1] == '0') digits[--at] = '9';
  --digits[at - 1];
  return digits.size() > 1 && digits[0] == '0' ? digits.substr(1) : digits;
}

WholeNumber WholeNumber::next() const {
  return make_number(is_negative ? digits_before(digits) : digits_after(digits), is_negative);
}

WholeNumber WholeNumber::previous() const {
  if (digits == "0") return {"1", true};
  return make_number(is_negative ? digits_after(digits) : digits_before(digits), is_negative);
}

std::strong_ordering WholeNumber::operator<=>(const WholeNumber& other) const {
  if (is_negative != other.is_negative) return other.is_negative <=> is_negative;
  return is_negative ? compare_digits(other.digits, digits) : compare_digits(digits, other.digits);
}

std::optional<RoundedNumber> round_number(std::string_view json, bool up) {
  const bool is_negative = json.starts_with('-');
  if (is_negative) json.remove_prefix(1);
  const size_t exponent_at = std::min(json.find_first_of("eE"), json.size());
  const int64_t exponent = exponent_at == json.size() ? 0 : read_exponent(json.substr(exponent_at + 1));
  const std::string_view mantissa = json.substr(0, exponent_at);
  const size_t point = std::min(mantissa.find('.'), mantissa.size());
  std::string all(mantissa.substr(0, point));
  if (point < mantissa.size()) all += mantissa.substr(point + 1);
  const size_t zeros = std::min(all.find_first_not_of('0'), all.size());
  const int64_t whole_digits = static_cast<int64_t>(point) + exponent - static_cast<int64_t>(zeros);
  all.erase(0, zeros);
  if (all.empty()) return RoundedNumber{};
  if (whole_digits > static_cast<int64_t>(WholeNumber::kMaxDigits)) return std::nullopt;
  const size_t count = static_cast<size_t>(std::max<int64_t>(whole_digits, 0));
  const std::string fraction = count < all.size() ? all.substr(count) : std::string();
  all.resize(count, '0');
  if (all.empty()) all = "0";
  const bool had_fraction = fraction.find_first_not_of('0') != std::string::npos;
  if (had_fraction && up != is_negative) all = digits_after(std::move(all));
  return RoundedNumber{make_number(std::move(all), is_negative), had_fraction};
}

}  // namespace millrace::grammar
