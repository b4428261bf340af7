#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/json_value.h"
#include "base/result.h"
#include "grammar/number_language.h"

/// The conditions of a JSON schema, sorted by the type of value that they are about.
namespace millrace::grammar {

/// A set of kinds of JSON values. Numbers are whole or have a fraction.
using TypeSet = uint8_t;
inline constexpr TypeSet kNullType = 1;
inline constexpr TypeSet kTrueType = 2;
inline constexpr TypeSet kFalseType = 4;
inline constexpr TypeSet kWholeType = 8;
inline constexpr TypeSet kFractionType = 16;
inline constexpr TypeSet kStringType = 32;
inline constexpr TypeSet kArrayType = 64;
inline constexpr TypeSet kObjectType = 128;
inline constexpr TypeSet kNumberTypes = kWholeType | kFractionType;
inline constexpr TypeSet kAllTypes = 255;

/// A schema that a value satisfies, or with `is_negated` does not, and its position for messages.
struct SchemaTerm {
  JsonValue schema;
  bool is_negated = false;
  std::string path;
};

/// Throws the failure to read the schema at `path`.
[[noreturn]] inline void fail_at(std::string_view path, std::string_view problem) {
  throw ErrorException(make_error(ErrorCode::kInvalidArgument, "{}: {}", path, problem));
}

/// Returns what `make` returns. Adds the position to a failure that has none.
template <class Make>
decltype(auto) at_position(std::string_view path, const Make& make) {
  try {
    return make();
  } catch (const ErrorException& failure) {
    fail_at(path, failure.error().message);
  }
}

struct ObjectConditions {
  /// What one schema says of the value of each member: by its name, else by patterns, else `additional`.
  struct Source {
    JsonObject properties;
    JsonObject patterns;
    JsonValue additional;  ///< missing: anything
    std::string path;
  };
  /// A member by which an object violates "additionalProperties", "patternProperties" or "propertyNames" of a schema.
  struct Witness {
    JsonObject schema;
    std::string_view keyword;
    JsonMember pattern;  ///< of "patternProperties"
    std::string path;
  };
  std::vector<Source> sources;
  std::vector<std::pair<std::string_view, SchemaTerm>> members;  ///< further conditions on one member's value
  std::vector<std::string_view> required;
  std::vector<std::string_view> forbidden;
  std::vector<SchemaTerm> names;   ///< conditions on every name
  std::vector<Witness> witnesses;  ///< members that exist
  uint32_t min = 0;
  std::optional<uint32_t> max;
  bool has_unevaluated = false;       ///< some schemas hold without saying what members are, under "not"
  std::optional<SchemaTerm> unnamed;  ///< the value of members that no source says anything of
};

struct ArrayConditions {
  /// What one schema says of the item at each position: of its prefix, else `rest`.
  struct Source {
    JsonArray prefix;
    JsonValue rest;  ///< missing: anything
    std::string prefix_path;
    std::string rest_path;
  };
  struct Contained {
    SchemaTerm term;
    uint32_t min = 1;
  };
  std::vector<Source> sources;
  std::vector<std::pair<uint32_t, SchemaTerm>> items;  ///< further conditions on the item at one position
  std::vector<SchemaTerm> every;                       ///< further conditions on all items
  std::vector<Contained> contained;                    ///< items that exist
  uint32_t min = 0;
  std::optional<uint32_t> max;
  bool is_unique = false;
  std::string path;  ///< of the schema that wants unique items
};

struct StringConditions {
  struct Text {
    std::string_view text;  ///< a regular expression, or the name of a format
    bool is_negated = false;
    std::string path;
  };
  std::vector<Text> patterns;
  std::vector<Text> formats;
  std::vector<std::string_view> excluded;
  uint32_t min = 0;
  std::optional<uint32_t> max;
};

using ValueList = std::shared_ptr<const std::vector<JsonValue>>;

/// One way to satisfy a set of terms: conditions that all hold together, without choices.
struct SchemaCase {
  TypeSet types = kAllTypes;
  bool has_types = false;       ///< a keyword fixes the types
  TypeSet keyword_types = 0;    ///< that some keyword is about
  bool has_exclusions = false;  ///< some values are left out
  ObjectConditions object;
  ArrayConditions array;
  StringConditions string;
  NumberConditions number;
  std::vector<ValueList> lists;                  ///< each holds the value
  std::optional<std::vector<JsonValue>> listed;  ///< all values of this case; the rest is then known to hold
};

/// A case that is being made: with terms and choices that have yet to be added.
struct CaseDraft;
/// One way of a choice: conditions that hold together.
struct CaseWay {
  TypeSet types = kAllTypes;
  std::optional<std::string_view> forbidden;  ///< a member that does not exist
  std::vector<SchemaTerm> open;
  std::function<bool(CaseDraft&)> further = {};  ///< adds more; returns false if nothing satisfies the result
  uint32_t cost = 0;                             ///< cheap ways are kept if there are too many
};
struct CaseChoice {
  std::vector<CaseWay> ways;
  bool may_omit = false;  ///< the choice is between violations, some of which may be left out
};
struct CaseDraft {
  SchemaCase made;
  std::vector<SchemaTerm> open;
  std::vector<std::shared_ptr<const CaseChoice>> choices;
  std::vector<std::vector<SchemaTerm>> exclusive;  ///< of each list, exactly one holds
  std::vector<std::pair<const void*, bool>> done;  ///< keys of the terms that were added
  bool is_alone = false;                           ///< all terms are parts of one

  /// Adds a way. Returns false if nothing satisfies the result.
  [[nodiscard]] bool take(const CaseWay& way) {
    if (way.types != kAllTypes && !keep_types(way.types)) return false;
    if (way.forbidden) made.object.forbidden.push_back(*way.forbidden);
    open.insert(open.end(), way.open.begin(), way.open.end());
    return !way.further || way.further(*this);
  }
  /// Adds a choice. Takes the only way of one at once.
  [[nodiscard]] bool choose(std::vector<CaseWay> ways, bool may_omit = false) {
    if (ways.empty()) return false;
    if (ways.size() == 1) return take(ways.front());
    choices.push_back(std::make_shared<const CaseChoice>(CaseChoice{std::move(ways), may_omit}));
    return true;
  }
  /// Fixes the types. Returns false if none is left.
  [[nodiscard]] bool keep_types(TypeSet types) {
    made.types &= types;
    made.has_types = true;
    return made.types != 0;
  }
};

/// Returns the types that a "type" keyword names. Fails at `path` for a malformed one.
[[nodiscard]] TypeSet types_named(JsonValue types, std::string_view path);
[[nodiscard]] TypeSet type_of(JsonValue value);
/// Returns a count that a keyword gives. Fails at `path` for anything else, and for more than `most`.
[[nodiscard]] std::optional<uint32_t> count_of(JsonObject schema, std::string_view keyword, std::string_view path);
/// Returns the number that a bound gives. Returns nothing if it bounds no number of up to 64 digits.
[[nodiscard]] std::optional<Decimal> bound_of(JsonValue value, std::string_view keyword, bool is_lower,
                                              std::string_view path);
void add_bound(NumberConditions& number, const Decimal& bound, bool is_lower, bool is_exclusive);

}  // namespace millrace::grammar
