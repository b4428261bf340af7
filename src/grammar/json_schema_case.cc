#include "grammar/json_schema_case.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace millrace::grammar {
namespace {

constexpr uint32_t kMaxCount = 100'000;

TypeSet type_named(std::string_view name, std::string_view path) {
  if (name == "object") return kObjectType;
  if (name == "array") return kArrayType;
  if (name == "string") return kStringType;
  if (name == "number") return kNumberTypes;
  if (name == "integer") return kWholeType;
  if (name == "boolean") return kTrueType | kFalseType;
  if (name == "null") return kNullType;
  if (name == "any") return kAllTypes;  // of draft 3
  fail_at(path, fmt::format("there is no type '{}'", name.substr(0, 64)));
}

}  // namespace

TypeSet types_named(JsonValue types, std::string_view path) {
  std::string_view name;
  if (types.get(name)) return type_named(name, path);
  JsonArray array;
  if (!types.get(array) || array.empty()) fail_at(path, "type: wanted a string, or an array of strings");
  TypeSet named = 0;
  for (const JsonValue item : array) {
    if (!item.get(name)) fail_at(path, "type: wanted strings");
    named |= type_named(name, path);
  }
  return named;
}

TypeSet type_of(JsonValue value) {
  switch (value.kind()) {
    case JsonKind::kNull: return kNullType;
    case JsonKind::kBool: return value.is_true() ? kTrueType : kFalseType;
    case JsonKind::kNumber: {
      const auto decimal = parse_decimal(value.number_text());
      return !decimal || decimal->fraction.empty() ? kWholeType : kFractionType;
    }
    case JsonKind::kString: return kStringType;
    case JsonKind::kArray: return kArrayType;
    case JsonKind::kObject: return kObjectType;
    case JsonKind::kMissing: break;
  }
  return 0;
}

std::optional<uint32_t> count_of(JsonObject schema, std::string_view keyword, std::string_view path) {
  const JsonValue value = schema[keyword];
  if (value.is_missing()) return std::nullopt;
  double count = -1;
  const bool is_count = value.get(count) && count >= 0 && count == std::floor(count);
  if (!is_count) fail_at(path, fmt::format("{}: wanted a count", keyword));
  if (count > kMaxCount) {
    // No text of this size is written, so a larger upper bound allows everything.
    if (keyword.starts_with("max")) return std::nullopt;
    fail_at(path, fmt::format("{}: wanted at most {}", keyword, kMaxCount));
  }
  return static_cast<uint32_t>(count);
}

std::optional<Decimal> bound_of(JsonValue value, std::string_view keyword, bool is_lower, std::string_view path) {
  if (!value.is_number()) fail_at(path, fmt::format("{}: wanted a number", keyword));
  auto bound = parse_decimal(value.number_text());
  if (bound || value.number_text().starts_with('-') == is_lower) return bound;
  fail_at(path, fmt::format("{}: wanted a number of at most {} digits", keyword, Decimal::kMaxWholeDigits));
}

void add_bound(NumberConditions& number, const Decimal& bound, bool is_lower, bool is_exclusive) {
  std::optional<Decimal>& kept = is_lower ? number.low : number.high;
  bool& excludes = is_lower ? number.excludes_low : number.excludes_high;
  const auto order = kept ? bound <=> *kept : std::strong_ordering::equal;
  const bool is_tighter = !kept || (is_lower ? order > 0 : order < 0);
  if (!is_tighter && order != 0) return;
  excludes = is_exclusive || (!is_tighter && excludes);
  kept = bound;
}

}  // namespace millrace::grammar
