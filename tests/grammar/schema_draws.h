#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

namespace millrace::test {

/// Draws small JSON schemas over the names a, b, ab and values whose satisfaction a SchemaOracle can decide.
class SchemaDraws {
 public:
  explicit SchemaDraws(uint64_t seed) : random_(seed) {}

  /// Returns a schema that mostly fixes the type of its values. With `excludes` it may hold "not", "oneOf", "if".
  std::string schema(int depth, bool excludes) {
    const char* type = pick({"string", "integer", "number", "boolean", "null", "object", "array"});
    if (depth > 0 && chance(3)) type = chance(3) ? "array" : "object";
    return of_type(
        type, keywords(type, depth, excludes) + (depth > 0 && chance(3) ? applicator(type, depth - 1, excludes) : ""));
  }
  /// Returns a value of few kinds.
  std::string value(int depth) {
    const auto kind = random_() % (depth > 0 ? 8 : 5);
    if (kind == 0) return pick({"null", "true", "false"});
    if (kind <= 2) return pick({"0", "1", "2", "3", "6", "-1", "1.5", "2.5", "10"});
    if (kind <= 4) return pick({R"("")", R"("a")", R"("b")", R"("ab")", R"("ba")", R"("aab")"});
    std::string text;
    if (kind == 5) {
      for (uint64_t i = 0, count = random_() % 4; i < count; ++i) text += (i > 0 ? "," : "") + value(depth - 1);
      return '[' + text + ']';
    }
    for (const char* name : shuffled()) {
      if (chance(2)) text += fmt::format(R"({}"{}":{})", text.empty() ? "" : ",", name, value(depth - 1));
    }
    return '{' + text + '}';
  }

 private:
  bool chance(uint64_t one_in) { return random_() % one_in == 0; }
  const char* pick(std::initializer_list<const char*> choices) {
    return *(choices.begin() + static_cast<std::ptrdiff_t>(random_() % choices.size()));
  }
  /// Returns a schema of keywords that each follow a comma. Leaves out the type that they are about now and then.
  std::string of_type(std::string_view type, const std::string& keywords) {
    if (chance(5)) return '{' + keywords.substr(std::min<size_t>(keywords.size(), 1)) + '}';
    return fmt::format(R"({{"type":"{}"{}}})", type, keywords);
  }
  std::vector<const char*> shuffled() {
    std::vector<const char*> names{"a", "b", "ab"};
    std::ranges::shuffle(names, random_);
    return names;
  }
  /// Returns each of the keywords with a chance of one half, each after a comma.
  std::string some(std::initializer_list<std::string> keywords) {
    std::string text;
    for (const std::string& keyword : keywords) {
      if (chance(2)) text += "," + keyword;
    }
    return text;
  }

  std::string keywords(std::string_view type, int depth, bool excludes) {
    const auto part = [&] { return depth > 0 ? schema(depth - 1, excludes) : std::string("{}"); };
    if (chance(6))
      return fmt::format(R"(,"enum":[{},{},{},{}])", value(0), value(0), pick({"[1]", "[]", "[\"a\",null]"}),
                         pick({R"({"a":1})", "{}", R"({"b":"a"})"}));
    if (type == "string") {
      return some({fmt::format(R"("minLength":{})", random_() % 3), fmt::format(R"("maxLength":{})", random_() % 4),
                   fmt::format(R"("pattern":"{}")", pick({"a", "^a", "b", "^b"}))});
    }
    if (type == "integer" || type == "number") {
      return some({fmt::format(R"("minimum":{})", pick({"-1", "0", "1.5", "2"})),
                   fmt::format(R"("exclusiveMaximum":{})", pick({"2", "2.5", "6.5", "10"})),
                   fmt::format(R"("multipleOf":{})", pick({"2", "3", "0.5", "1.5"}))});
    }
    if (type == "array") {
      const bool is_finite = chance(4);
      const std::string unique = is_finite && chance(2) ? R"(,"uniqueItems":true)" : "";
      return unique +
             some({fmt::format(R"("items":{})", is_finite ? pick({R"({"enum":[1,"a",null]})",
                                                                  R"({"type":"integer","minimum":-1,"maximum":3})"})
                                                          : part()),
                   fmt::format(R"("prefixItems":[{},{}])", part(), part()),
                   fmt::format(R"("minItems":{})", random_() % 3), fmt::format(R"("maxItems":{})", random_() % 4),
                   fmt::format(R"("contains":{})", part())});
    }
    if (type != "object") return "";
    return some({fmt::format(R"("properties":{{"a":{},"b":{}}})", part(), part()),
                 fmt::format(R"("patternProperties":{{"{}":{}}})", pick({"^a", "b", "^b"}), part()),
                 fmt::format(R"("additionalProperties":{})", chance(2) ? "false" : part()),
                 fmt::format(R"("required":["{}"])", pick({"a", "b", "ab"})),
                 fmt::format(R"("minProperties":{})", random_() % 3),
                 fmt::format(R"("maxProperties":{})", random_() % 4),
                 fmt::format(R"("dependentRequired":{{"{}":["{}"]}})", pick({"a", "b"}), pick({"a", "ab"})),
                 fmt::format(R"("propertyNames":{{"minLength":{}}})", 1 + random_() % 2)});
  }

  /// Returns a keyword that holds further schemas of the same type, after a comma.
  std::string applicator(std::string_view type, int depth, bool excludes) {
    const auto part = [&] { return of_type(type, keywords(type, depth, excludes)); };
    switch (random_() % (excludes ? 6 : 2)) {
      case 0: return fmt::format(R"(,"allOf":[{},{}])", part(), part());
      case 1: return fmt::format(R"(,"anyOf":[{},{}])", part(), part());
      case 2: return fmt::format(R"(,"oneOf":[{},{}])", part(), part());
      case 3: return fmt::format(R"(,"not":{})", part());
      case 4: return fmt::format(R"(,"if":{},"then":{})", part(), part());
      default: return fmt::format(R"(,"oneOf":[{},{},{}])", part(), part(), part());
    }
  }

  std::mt19937_64 random_;
};

}  // namespace millrace::test
