#include "grammar/number_language.h"

#include <algorithm>
#include <map>
#include <tuple>

#include "base/result.h"

namespace millrace::grammar {
namespace {

/// Digits of numbers that no bound limits: what 64 bits hold.
constexpr size_t kUsualDigits = 18;
/// Limits the remainders that are distinguished.
constexpr uint64_t kMaxDivisor = 10'000;

using NumberState = TextLanguage::State;

void add_char(NumberState& state, char c, uint32_t to) {
  const auto code = static_cast<char32_t>(c);
  state.edges.push_back({code, code, to});
}

/// Bounds of numbers without a sign.
struct Magnitudes {
  Decimal low;
  std::optional<Decimal> high;
  bool excludes_low = false;
  bool excludes_high = false;
  bool allows_whole = true;
  bool allows_fraction = true;
  size_t max_whole_digits = kUsualDigits;
};

/// Adds the states that read the numbers between two bounds digit by digit. A state knows how the digits compare with
/// those of the bounds.
class MagnitudeStates {
 public:
  MagnitudeStates(const Magnitudes& bounds, std::vector<NumberState>& states)
      : bounds_(bounds), high_(bounds.high.value_or(Decimal{})), states_(states) {
    max_fraction_digits_ = std::max({kUsualDigits, bounds_.low.fraction.size() + 1, high_.fraction.size() + 1});
  }

  /// Returns the state that reads the first digit.
  uint32_t build() {
    const uint32_t begin = state_of({});
    while (!open_.empty()) {
      const Position at = open_.back();
      open_.pop_back();
      const uint32_t state = numbers_.at(at);
      NumberState made;
      if (at.in_fraction) {
        read_fraction(at, made);
      } else {
        read_whole(at, made);
      }
      states_[state] = std::move(made);
    }
    return begin;
  }

 private:
  /// How the digits so far compare with those of the bounds: less, equal, greater.
  struct Position {
    bool in_fraction = false;
    size_t digits = 0;  ///< of the present part
    int to_low = 0;
    int to_high = 0;
    bool is_zero = false;     ///< the whole part is 0, which no digit follows
    bool is_nonzero = false;  ///< a digit of the fraction is not 0
    auto operator<=>(const Position&) const = default;
  };

  uint32_t state_of(const Position& position) {
    const auto [entry, is_new] = numbers_.try_emplace(position, static_cast<uint32_t>(states_.size()));
    if (is_new) {
      states_.emplace_back();
      open_.push_back(position);
    }
    return entry->second;
  }

  static int compared(int so_far, char digit, const std::string& bound, size_t index, char beyond) {
    if (so_far != 0) return so_far;
    const char other = index < bound.size() ? bound[index] : beyond;
    return digit < other ? -1 : digit > other ? 1 : 0;
  }

  /// Compares a whole part of `count` digits with that of a bound.
  static int compared_whole(int digits, size_t count, const std::string& bound) {
    if (count != bound.size()) return count < bound.size() ? -1 : 1;
    return digits;
  }

  void read_whole(const Position& at, NumberState& state) {
    for (char digit = '0'; digit <= '9'; ++digit) {
      if (at.is_zero || at.digits >= bounds_.max_whole_digits) break;
      Position next{.in_fraction = false, .digits = at.digits + 1};
      next.to_low = compared(at.to_low, digit, bounds_.low.whole, at.digits, '0');
      next.to_high = compared(at.to_high, digit, high_.whole, at.digits, '0');
      next.is_zero = at.digits == 0 && digit == '0';
      add_char(state, digit, state_of(next));
    }
    if (at.digits == 0) return;
    const int to_low = compared_whole(at.to_low, at.digits, bounds_.low.whole);
    const int to_high = bounds_.high ? compared_whole(at.to_high, at.digits, high_.whole) : -1;
    if (to_low < 0 || to_high > 0) return;
    const bool is_above = to_low > 0 || (bounds_.low.fraction.empty() && !bounds_.excludes_low);
    const bool is_below = to_high < 0 || !high_.fraction.empty() || !bounds_.excludes_high;
    state.is_end = bounds_.allows_whole && is_above && is_below;
    if (bounds_.allows_fraction) {
      const uint32_t to = state_of({.in_fraction = true, .digits = 0, .to_low = to_low, .to_high = to_high});
      state.edges.insert(state.edges.begin(), {U'.', U'.', to});
    }
  }

  void read_fraction(const Position& at, NumberState& state) {
    for (char digit = '0'; digit <= '9' && at.digits < max_fraction_digits_; ++digit) {
      Position next = at;
      ++next.digits;
      next.to_low = compared(at.to_low, digit, bounds_.low.fraction, at.digits, '0');
      next.to_high = compared(at.to_high, digit, high_.fraction, at.digits, '0');
      next.is_nonzero = at.is_nonzero || digit != '0';
      if (next.to_low >= 0 && next.to_high <= 0) add_char(state, digit, state_of(next));
    }
    const bool is_low = at.to_low == 0 && at.digits >= bounds_.low.fraction.size();
    const bool is_above = at.to_low > 0 || (is_low && !bounds_.excludes_low);
    const bool is_high = at.to_high == 0 && at.digits >= high_.fraction.size();
    const bool is_below = !is_high || !bounds_.excludes_high;
    state.is_end = at.digits > 0 && is_above && is_below && (bounds_.allows_whole || at.is_nonzero);
  }

  const Magnitudes& bounds_;
  const Decimal high_;
  std::vector<NumberState>& states_;
  std::map<Position, uint32_t> numbers_;
  std::vector<Position> open_;
  size_t max_fraction_digits_ = kUsualDigits;
};

TextLanguage bounded_numbers(const NumberConditions& conditions, ReadWork& work) {
  const auto digits_of = [](const std::optional<Decimal>& bound) { return bound ? bound->whole.size() : 0; };
  const size_t most = std::max(digits_of(conditions.low), digits_of(conditions.high));
  Magnitudes positive{.low = {}, .high = conditions.high};
  positive.excludes_high = conditions.excludes_high;
  positive.allows_whole = conditions.allows_whole;
  positive.allows_fraction = conditions.allows_fraction;
  positive.max_whole_digits = most >= kUsualDigits ? most + 1 : kUsualDigits;
  Magnitudes negative = positive;
  negative.high = conditions.low ? std::optional(conditions.low->negated()) : std::nullopt;
  negative.excludes_high = conditions.excludes_low;
  negative.excludes_low = true;  // 0 has no sign
  bool has_positive = true;
  bool has_negative = true;
  if (conditions.low && !conditions.low->is_negative) {
    has_negative = false;
    positive.low = *conditions.low;
    positive.excludes_low = conditions.excludes_low;
  }
  if (conditions.high && (conditions.high->is_negative || conditions.high->is_zero())) {
    has_positive = conditions.high->is_zero();
    negative.low = conditions.high->negated();
    negative.excludes_low = conditions.excludes_high || conditions.high->is_zero();
  }
  std::vector<NumberState> states(1);
  NumberState begin;
  if (has_negative) {
    const uint32_t to = MagnitudeStates(negative, states).build();
    add_char(begin, '-', to);
  }
  if (has_positive) {
    const uint32_t first = MagnitudeStates(positive, states).build();
    begin.edges.insert(begin.edges.end(), states[first].edges.begin(), states[first].edges.end());
  }
  states[0] = std::move(begin);
  return TextLanguage::from_states(std::move(states), work);
}

/// A divisor as a whole number over a power of ten.
struct Divisor {
  uint64_t number = 1;
  size_t decimals = 0;
};

Divisor divisor_of(const Decimal& decimal) {
  const std::string digits = (decimal.whole == "0" ? "" : decimal.whole) + decimal.fraction;
  const size_t first = std::min(digits.find_first_not_of('0'), digits.size());
  Divisor divisor{.number = 0, .decimals = decimal.fraction.size()};
  for (size_t i = first; i < digits.size() && divisor.number <= kMaxDivisor; ++i) {
    divisor.number = divisor.number * 10 + static_cast<uint64_t>(digits[i] - '0');
  }
  if (divisor.number == 0 || decimal.is_negative) {
    throw ErrorException(make_error(ErrorCode::kInvalidArgument, "multipleOf: wanted a number above 0"));
  }
  if (divisor.number > kMaxDivisor || divisor.decimals > kUsualDigits) {
    throw ErrorException(make_error(ErrorCode::kInvalidArgument,
                                    "multipleOf: wanted a number of few digits, at most {} without its point",
                                    kMaxDivisor));
  }
  return divisor;
}

/// Returns the remainder after as many further zeros.
uint64_t shifted(uint64_t remainder, size_t zeros, uint64_t divisor) {
  for (; zeros > 0; --zeros) remainder = remainder * 10 % divisor;
  return remainder;
}

/// Returns the texts of digits and a point that are multiples. A state is a remainder, and how many decimals it has.
TextLanguage multiples_of(const Decimal& decimal, ReadWork& work) {
  const Divisor divisor = divisor_of(decimal);
  const uint64_t m = divisor.number;
  const size_t k = divisor.decimals;
  if (m * (k + 2) >= TextLanguage::kMaxStates) {
    throw ErrorException(make_error(ErrorCode::kInvalidArgument, "multipleOf: it has too many digits"));
  }
  const auto state_of = [&](size_t part, uint64_t remainder) {
    return static_cast<uint32_t>(1 + part * m + remainder);
  };
  std::vector<NumberState> states(1 + (k + 2) * m);
  for (size_t part = 0; part <= k + 1; ++part) {  // 0: before the point; then decimals read + 1
    const size_t decimals = part == 0 ? 0 : part - 1;
    for (uint64_t r = 0; r < m; ++r) {
      NumberState& state = states[state_of(part, r)];
      state.is_end = shifted(r, k - decimals, m) == 0;
      if (part == 0) state.edges.push_back({U'.', U'.', state_of(1, r)});
      for (char digit = '0'; digit <= '9'; ++digit) {
        if (decimals == k && part > 0) {
          if (digit == '0' && r == 0) add_char(state, digit, state_of(part, r));
          continue;
        }
        const uint64_t next = (r * 10 + static_cast<uint64_t>(digit - '0')) % m;
        add_char(state, digit, state_of(part == 0 ? 0 : part + 1, next));
      }
    }
  }
  states[0] = states[state_of(0, 0)];
  states[0].is_end = false;
  states[0].edges.erase(states[0].edges.begin());
  states[0].edges.insert(states[0].edges.begin(), {U'-', U'-', state_of(0, 0)});
  return TextLanguage::from_states(std::move(states), work);
}

}  // namespace

TextLanguage number_language(const NumberConditions& conditions, ReadWork& work) {
  TextLanguage language = bounded_numbers(conditions, work);
  for (const NumberConditions::Multiple& multiple : conditions.multiples) {
    const TextLanguage multiples = multiples_of(multiple.divisor, work);
    language = language.and_also(multiple.is_negated ? multiples.complement(work) : multiples, work);
  }
  for (const Decimal& value : conditions.excluded) {
    language = language.and_also(bounded_numbers({.low = value, .high = value}, work).complement(work), work);
  }
  return language;
}

bool is_multiple_of(const Decimal& number, const Decimal& decimal) {
  const Divisor divisor = divisor_of(decimal);
  uint64_t remainder = 0;
  for (const char digit : number.whole) {
    remainder = (remainder * 10 + static_cast<uint64_t>(digit - '0')) % divisor.number;
  }
  for (size_t i = 0; i < std::max(number.fraction.size(), divisor.decimals); ++i) {
    const char digit = i < number.fraction.size() ? number.fraction[i] : '0';
    if (i >= divisor.decimals && digit != '0') return false;
    if (i < divisor.decimals) remainder = (remainder * 10 + static_cast<uint64_t>(digit - '0')) % divisor.number;
  }
  return remainder == 0;
}

}  // namespace millrace::grammar
