#include "grammar/json_schema_numbers.h"

#include <fmt/format.h>

#include <optional>
#include <string_view>

#include "base/result.h"
#include "grammar/whole_number.h"

namespace millrace::grammar {
namespace {

[[noreturn]] void refuse_bound(std::string_view problem) {
  throw ErrorException(make_error(ErrorCode::kInvalidArgument, "{}", problem));
}

struct Bound {
  std::optional<WholeNumber> value;
  bool is_exclusive = false;
};

/// The tighter of an inclusive and an exclusive bound. Earlier drafts have a flag for the exclusive one.
Bound bound_of(const JsonObject& object, const char* inclusive, const char* exclusive, bool is_lower, bool is_integer) {
  Bound bound;
  const auto read = [&](const char* keyword, bool is_exclusive) {
    const JsonValue value = object[keyword];
    if (value.is_missing()) return;
    if (value.is_bool()) {
      bound.is_exclusive = bound.is_exclusive || value.is_true();
      return;
    }
    if (!value.is_number()) refuse_bound(fmt::format("{}: wanted a number", keyword));
    const auto rounded = round_number(value.number_text(), is_lower);
    if (!rounded) {
      if (value.number_text().starts_with('-') == is_lower) return;  // no number here reaches it
      refuse_bound(fmt::format("{}: wanted a number of at most {} digits", keyword, WholeNumber::kMaxDigits));
    }
    if (rounded->had_fraction) {
      if (!is_integer) refuse_bound(fmt::format("{}: only whole numbers are supported", keyword));
      is_exclusive = false;
    }
    const WholeNumber& found = rounded->number;
    const bool is_tighter = !bound.value || (is_lower ? found > *bound.value : found < *bound.value) ||
                            (found == *bound.value && is_exclusive);
    if (is_tighter) bound = {found, is_exclusive};
  };
  read(inclusive, false);
  read(exclusive, true);
  return bound;
}

}  // namespace

ExpressionPtr number_of_schema(JsonObject schema, bool is_integer, JsonRules& rules) {
  const Bound low = bound_of(schema, "minimum", "exclusiveMinimum", true, is_integer);
  const Bound high = bound_of(schema, "maximum", "exclusiveMaximum", false, is_integer);
  if (!low.value && !high.value) return is_integer ? rules.integer() : rules.number();
  const NumberRange bounds{low.value, high.value, low.is_exclusive, high.is_exclusive};
  if (!is_integer) return JsonRules::number_between(bounds);
  IntegerRange range = JsonRules::whole_range(bounds);
  if (low.is_exclusive) range.low = range.low.next();
  if (high.is_exclusive) range.high = range.high.previous();
  if (range.low > range.high) refuse_bound("no integer is within its bounds");
  return JsonRules::integer_between(range);
}

}  // namespace millrace::grammar
