#include "grammar/json_schema.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <deque>
#include <unordered_map>

#include "base/json_value.h"
#include "grammar/json_rules.h"
#include "grammar/json_schema_keywords.h"
#include "grammar/json_schema_merge.h"
#include "grammar/json_schema_numbers.h"
#include "grammar/json_schema_values.h"
#include "grammar/regex_parser.h"

namespace millrace::grammar {
namespace {

using Json = JsonValue;

constexpr uint32_t kMaxSchemaNesting = 64;
constexpr uint32_t kMaxCount = 100'000;
constexpr size_t kMaxProperties = 2000;  // of an object; each nests the tree
constexpr size_t kMaxPrefixItems = 2000;
constexpr size_t kMaxMergedBytes = 1 << 20;  // of all merged schemas together
/// Limits the total size of the names that additional members must differ from.
constexpr size_t kMaxOtherNameBytes = 4096;

/// A subschema and where it stands, for messages.
struct Schema {
  Json json;
  std::string path;
};

[[noreturn]] void fail(const Schema& schema, std::string_view problem) {
  throw ErrorException(make_error(ErrorCode::kInvalidArgument, "{}: {}", schema.path, problem));
}

/// Returns the text with its %XX replaced, as a URI fragment writes a JSON pointer.
std::string percent_decoded(std::string_view text) {
  std::string decoded;
  for (size_t i = 0; i < text.size(); ++i) {
    uint8_t byte = 0;
    const char* digits = text.data() + i + 1;
    const bool is_escape =
        text[i] == '%' && i + 2 < text.size() && std::from_chars(digits, digits + 2, byte, 16).ptr == digits + 2;
    decoded += is_escape ? static_cast<char>(byte) : text[i];
    if (is_escape) i += 2;
  }
  return decoded;
}

/// Returns what `read` returns. Adds the position to its failure.
template <class Read>
auto at_path(const Schema& schema, const Read& read) {
  try {
    return read();
  } catch (const ErrorException& failure) {
    fail(schema, failure.error().message);
  }
}

class JsonSchemaParser {
 public:
  JsonSchemaParser(Json root, Definition& definition, UnsupportedKeywords unsupported)
      : root_(root), definition_(definition), unsupported_(unsupported), rules_(definition) {}

  ExpressionPtr read_root() { return resolve("#", {root_, "schema"}); }

 private:
  ExpressionPtr read(const Schema& schema) {
    bool is_anything = false;
    if (schema.json.get(is_anything)) return is_anything ? rules_.value() : choice({});
    JsonObject object;
    if (!schema.json.get(object)) fail(schema, "wanted an object, true or false");
    if (++nesting_ > kMaxSchemaNesting) fail(schema, fmt::format("it is nested more than {} deep", kMaxSchemaNesting));
    ExpressionPtr expression = read_supported(schema, object);
    bool is_nullable = false;
    if (object["nullable"].get(is_nullable) && is_nullable) {
      expression = choice({std::move(expression), literal("null")});
    }
    --nesting_;
    return expression;
  }

  /// Reads the keywords. Where they cannot be enforced and need not be, any value of the type is allowed.
  ExpressionPtr read_supported(const Schema& schema, const JsonObject& object) {
    const uint32_t nesting = nesting_;
    try {
      const std::string_view unenforced = unenforced_keyword(object);
      if (!unenforced.empty() && unsupported_ == UnsupportedKeywords::kRefuse) {
        fail(schema, fmt::format("the keyword '{}' is not supported", unenforced));
      }
      return read_keywords(schema, object);
    } catch (const ErrorException&) {
      if (unsupported_ == UnsupportedKeywords::kRefuse) throw;
      nesting_ = nesting;
      std::string_view type;
      const bool is_object = object["type"].get(type) ? type == "object" : object["properties"].is_object();
      return is_object ? rules_.object() : rules_.value();
    }
  }

  static bool has_other_constraint(const JsonObject& object, std::string_view keyword) {
    return std::ranges::any_of(
        object, [&](const JsonMember& member) { return member.key != keyword && is_constraint(object, member); });
  }

  /// Returns what a keyword that refers to other schemas allows, together with all keywords beside it.
  ExpressionPtr read_applicator(const Schema& schema, const JsonObject& object, const char* keyword) {
    const Json value = object[keyword];
    const bool is_conjunction = keyword == std::string_view("allOf");
    const Schema list{value, fmt::format("{}.{}", schema.path, keyword)};
    const bool is_alone = !has_other_constraint(object, keyword);
    if (keyword == std::string_view("$ref")) {
      if (is_alone) return read_reference(schema, value);
      return read_merged(schema, merged(schema, without_keyword(object, keyword), referred(schema, value).json));
    }
    JsonArray array;
    if (!value.get(array) || array.size() == 0) fail(list, "wanted an array of at least one schema");
    if (is_alone && (!is_conjunction || array.size() == 1)) return choice(read_each(list));
    std::string all = without_keyword(object, keyword);
    if (is_conjunction) {
      for (const Json part : array) all = merged(list, all, part);
      return read_merged(schema, all);
    }
    std::vector<ExpressionPtr> ways;
    for (const Json part : array) ways.push_back(read_merged(schema, merged(list, all, part)));
    return choice(std::move(ways));
  }

  /// Returns the text of a schema for the instances of both.
  std::string merged(const Schema& schema, const std::string& left, Json right) {
    if (right.is_true() || left == "false") return left;
    if (right.is_false()) return "false";
    const auto document = JsonDocument::parse(left).value();
    JsonObject ours;
    JsonObject theirs;
    if (!document.root().get(ours) || !right.get(theirs)) fail(schema, "wanted an object, true or false");
    const auto text = merge_schemas(ours, theirs);
    if (text.has_error()) fail(schema, text.error().message);
    merged_bytes_ += text->size();
    if (merged_bytes_ > kMaxMergedBytes) fail(schema, "its schemas are too large to be merged");
    return *text;
  }

  /// Reads a merged schema. Equal ones share a rule, so that recursion comes to an end.
  ExpressionPtr read_merged(const Schema& schema, std::string text) {
    const std::string& kept = merged_texts_.emplace_back(std::move(text));
    const JsonDocument& document = merged_documents_.emplace_back(JsonDocument::parse(kept).value());
    return resolve(kept, {document.root(), schema.path});
  }

  ExpressionPtr read_keywords(const Schema& schema, const JsonObject& object) {
    Json value;
    // Last allOf, which takes what cannot be merged by keyword, such as a second anyOf.
    for (const char* keyword : {"$ref", "anyOf", "oneOf", "allOf"}) {
      if (!object[keyword].is_missing()) return read_applicator(schema, object, keyword);
    }
    if (object["const"].get(value)) return read_values(schema, object, "const", {value});
    if (object["enum"].get(value)) {
      JsonArray array;
      if (!value.get(array) || array.size() == 0) fail(schema, "enum: wanted an array of at least one value");
      return read_values(schema, object, "enum", {array.begin(), array.end()});
    }
    if (object["type"].get(value)) return read_types(schema, object, value);
    if (has_keyword_for(object, Constrained::kObject)) return read_object(schema, object);
    if (has_keyword_for(object, Constrained::kArray)) return read_array(schema, object);
    if (has_keyword_for(object, Constrained::kString)) return read_string(schema, object);
    if (has_keyword_for(object, Constrained::kNumber)) return read_number(schema, object, false);
    return rules_.value();
  }

  std::vector<ExpressionPtr> read_each(const Schema& list) {
    JsonArray array;
    if (!list.json.get(array) || array.size() == 0) {
      fail(list, "wanted an array of at least one schema");
    }
    std::vector<ExpressionPtr> parts;
    for (const Json item : array) parts.push_back(read({item, fmt::format("{}[{}]", list.path, parts.size())}));
    return parts;
  }

  /// Returns those of the listed values that satisfy all other keywords.
  static ExpressionPtr read_values(const Schema& schema, const JsonObject& object, std::string_view keyword,
                                   const std::vector<Json>& values) {
    std::vector<ExpressionPtr> parts;
    std::string_view violated;
    for (const Json value : values) {
      const auto unsatisfied = [&](const JsonMember& member) { return !satisfies(value, object, member); };
      const auto found = at_path(schema, [&] { return std::ranges::find_if(object, unsatisfied); });
      if (found != object.end()) {
        violated = (*found).key;
      } else {
        parts.push_back(literal(to_json(value)));
      }
    }
    if (parts.empty()) fail(schema, fmt::format("{}: '{}' allows none of its values", keyword, violated));
    return choice(std::move(parts));
  }

  Schema referred(const Schema& schema, Json value) const {
    std::string_view target;
    if (!value.get(target)) fail(schema, "$ref: wanted a string");
    if (!target.starts_with('#')) fail(schema, "$ref: only references within the schema are supported");
    const Json found = root_.at_pointer(percent_decoded(target.substr(1)));
    if (found.is_missing()) fail(schema, fmt::format("$ref: there is no '{}'", target.substr(0, 256)));
    return {found, std::string(target)};
  }

  ExpressionPtr read_reference(const Schema& schema, Json value) {
    const Schema found = referred(schema, value);
    return resolve(found.path, found);
  }

  /// A rule for each schema that is referred to, so that it may refer to itself.
  ExpressionPtr resolve(std::string_view target, const Schema& schema) {
    const auto [entry, is_new] = by_reference_.try_emplace(std::string(target), 0);
    if (!is_new) return reference(entry->second);
    const RuleIndex rule = definition_.add(schema.path);
    entry->second = rule;
    const uint32_t nesting = std::exchange(nesting_, 0);
    if (++references_ > kMaxSchemaNesting * 16) fail(schema, "it refers to too many schemas");
    ExpressionPtr expression = read(schema);
    nesting_ = nesting;
    definition_.rules[rule].expression = std::move(expression);
    return reference(rule);
  }

  ExpressionPtr read_types(const Schema& schema, const JsonObject& object, Json types) {
    std::string_view name;
    if (types.get(name)) return read_type(schema, object, name);
    JsonArray array;
    if (!types.get(array) || array.size() == 0) {
      fail(schema, "type: wanted a string, or an array of strings");
    }
    std::vector<ExpressionPtr> parts;
    for (const Json item : array) {
      if (!item.get(name)) fail(schema, "type: wanted strings");
      parts.push_back(read_type(schema, object, name));
    }
    return choice(std::move(parts));
  }

  ExpressionPtr read_type(const Schema& schema, const JsonObject& object, std::string_view type) {
    if (type == "object") return read_object(schema, object);
    if (type == "array") return read_array(schema, object);
    if (type == "string") return read_string(schema, object);
    if (type == "number") return read_number(schema, object, false);
    if (type == "integer") return read_number(schema, object, true);
    if (type == "boolean") return choice({literal("true"), literal("false")});
    if (type == "null") return literal("null");
    fail(schema, fmt::format("there is no type '{}'", type.substr(0, 64)));
  }

  // Objects.

  struct Property {
    std::string_view name;
    ExpressionPtr member;
    bool is_required = false;
  };

  ExpressionPtr member_of(ExpressionPtr key, ExpressionPtr value) {
    const RuleIndex rule =
        definition_.add("a member", sequence({std::move(key), literal(":"), rules_.space(), std::move(value)}));
    return reference(rule);
  }

  static std::vector<std::string_view> required_of(const Schema& schema, const JsonObject& object) {
    std::vector<std::string_view> required;
    Json value;
    if (!object["required"].get(value)) return required;
    JsonArray array;
    if (!value.get(array)) fail(schema, "required: wanted an array of names");
    if (array.size() > kMaxProperties) fail(schema, fmt::format("required: wanted at most {}", kMaxProperties));
    for (const Json item : array) {
      if (!item.get(required.emplace_back())) fail(schema, "required: wanted names");
    }
    return required;
  }

  ExpressionPtr read_object(const Schema& schema, const JsonObject& object) {
    std::vector<std::string_view> required = required_of(schema, object);
    std::vector<Property> properties;
    std::vector<std::string_view> names;
    Json value;
    if (object["properties"].get(value)) {
      JsonObject members;
      if (!value.get(members)) fail(schema, "properties: wanted an object");
      if (members.size() > kMaxProperties) fail(schema, fmt::format("properties: wanted at most {}", kMaxProperties));
      for (const auto& [name, json] : members) {
        ExpressionPtr content = read({json, fmt::format("{}.properties.{}", schema.path, name.substr(0, 64))});
        const bool is_required = std::erase(required, name) > 0;
        properties.push_back({name, member_of(JsonRules::quoted(name), std::move(content)), is_required});
        names.push_back(name);
      }
    }
    ExpressionPtr additional;  // the value of other members; null: there are none
    if (!object["additionalProperties"].get(value)) {
      if (properties.empty()) additional = rules_.value();
    } else if (!value.is_bool() || value.is_true()) {
      additional = read({value, schema.path + ".additionalProperties"});
    }
    for (const std::string_view name : required) {
      if (additional == nullptr) {
        fail(schema, fmt::format("required: there is no property '{}'", name.substr(0, 64)));
      }
      properties.push_back({name, member_of(JsonRules::quoted(name), additional), true});
      names.push_back(name);
    }
    size_t name_bytes = 0;
    for (const std::string_view name : names) name_bytes += name.size();
    if (additional != nullptr && name_bytes > kMaxOtherNameBytes) {
      fail(schema, fmt::format("additionalProperties beside properties whose names have more than {} bytes together",
                               kMaxOtherNameBytes));
    }
    ExpressionPtr other = additional == nullptr ? nullptr : member_of(rules_.other_key(names), std::move(additional));
    return sequence({literal("{"), rules_.space(), members_of(properties, other), literal("}")});
  }

  /// The members in their order; whoever is first has no comma before it.
  ExpressionPtr members_of(const std::vector<Property>& properties, const ExpressionPtr& other) {
    const auto after_comma = [this](const ExpressionPtr& member) {
      return sequence({literal(","), rules_.space(), member});
    };
    ExpressionPtr rest = other == nullptr ? rules_.space() : sequence({repeat(after_comma(other), 0), rules_.space()});
    ExpressionPtr first = other == nullptr ? literal("") : optional(sequence({other, rest}));
    for (auto at = properties.rbegin(); at != properties.rend(); ++at) {
      // Rules, since what follows a member is the same whether it is the first or not.
      const ExpressionPtr behind = reference(definition_.add("the members behind " + std::string(at->name), rest));
      ExpressionPtr as_first = sequence({at->member, behind});
      ExpressionPtr as_later = sequence({after_comma(at->member), behind});
      first = at->is_required ? std::move(as_first) : choice({std::move(as_first), first});
      rest = at->is_required ? std::move(as_later) : choice({std::move(as_later), behind});
    }
    return first;
  }

  // Arrays.

  static std::optional<uint32_t> count_of(const Schema& schema, const JsonObject& object, const char* keyword) {
    Json value;
    if (!object[keyword].get(value)) return std::nullopt;
    double count = -1;
    const bool is_count = value.get(count) && count >= 0 && count == std::floor(count);
    if (!is_count) fail(schema, fmt::format("{}: wanted a count", keyword));
    if (count > kMaxCount) fail(schema, fmt::format("{}: wanted at most {}", keyword, kMaxCount));
    return static_cast<uint32_t>(count);
  }

  ExpressionPtr read_array(const Schema& schema, const JsonObject& object) {
    const uint32_t min = count_of(schema, object, "minItems").value_or(0);
    std::optional<uint32_t> max = count_of(schema, object, "maxItems");
    if (max && *max < min) fail(schema, "maxItems is less than minItems");
    std::vector<ExpressionPtr> items;
    Json value;
    // Earlier drafts write the items of known positions as "items", and the further ones as "additionalItems".
    const bool is_list = object["items"].is_array();
    const std::string known = is_list ? "items" : "prefixItems";
    JsonArray none;
    const bool has_known = object[known].get(value) && !(is_list && value.get(none) && none.empty());
    if (has_known) items = read_each({value, fmt::format("{}.{}", schema.path, known)});
    if (items.size() > kMaxPrefixItems) {
      fail(schema, fmt::format("{}: wanted at most {}", known, kMaxPrefixItems));
    }
    const auto prefix = static_cast<uint32_t>(items.size());
    ExpressionPtr further;
    const std::string rest = is_list ? "additionalItems" : "items";
    if (!object[rest].get(value)) {
      further = rules_.value();
    } else if (!value.is_bool() || value.is_true()) {
      further = read({value, fmt::format("{}.{}", schema.path, rest)});
    } else {
      max = std::min(max.value_or(prefix), prefix);
      if (min > prefix) fail(schema, "minItems is larger than the number of items allowed");
    }
    if (items.empty() && further != nullptr) items.push_back(further);
    if (max && items.size() > *max) items.resize(*max);
    return sequence({literal("["), rules_.space(), items_of(items, further, min, max), literal("]")});
  }

  ExpressionPtr items_of(const std::vector<ExpressionPtr>& items, const ExpressionPtr& further, uint32_t min,
                         std::optional<uint32_t> max) {
    if (items.empty()) return literal("");
    const auto count = static_cast<uint32_t>(items.size());
    ExpressionPtr rest = rules_.space();
    if (further != nullptr && (!max || *max > count)) {
      const std::optional<uint32_t> more = max ? std::optional(*max - count) : std::nullopt;
      ExpressionPtr item = sequence({literal(","), rules_.space(), further});
      rest = sequence({repeat(std::move(item), std::max(min, count) - count, more), rest});
    }
    for (uint32_t i = count; i-- > 0;) {
      ExpressionPtr item = i == 0 ? items[i] : sequence({literal(","), rules_.space(), items[i]});
      ExpressionPtr with = sequence({std::move(item), rest});
      // Without it there is still the space before the bracket, but for an empty array, whose bracket has had it.
      if (i >= min) with = i == 0 ? optional(std::move(with)) : choice({std::move(with), rules_.space()});
      rest = std::move(with);
    }
    return rest;
  }

  // Strings and numbers.

  ExpressionPtr read_string(const Schema& schema, const JsonObject& object) {
    const auto min = count_of(schema, object, "minLength");
    const auto max = count_of(schema, object, "maxLength");
    if (max && *max < min.value_or(0)) fail(schema, "maxLength is less than minLength");
    Json value;
    std::string_view text;
    if (object["pattern"].get(value)) {
      if (!value.get(text)) fail(schema, "pattern: wanted a string");
      if (min || max) fail(schema, "pattern beside minLength or maxLength is not supported");
      return read_quoted_pattern(schema, text, true);
    }
    if (object["format"].get(value)) {
      if (!value.get(text)) fail(schema, "format: wanted a string");
      const std::string pattern = pattern_of_format(text);
      if (!pattern.empty()) {
        if (min || max) fail(schema, fmt::format("format {} beside minLength or maxLength is not supported", text));
        return read_quoted_pattern(schema, pattern, false);
      }
    }
    return rules_.string_of(min.value_or(0), max);
  }

  static ExpressionPtr read_quoted_pattern(const Schema& schema, std::string_view pattern, bool is_search) {
    auto body = parse_regex(pattern, is_search, JsonRules::string_char);
    if (body.has_error()) fail(schema, "pattern: " + body.error().message);
    return sequence({literal("\""), std::move(*body), literal("\"")});
  }

  ExpressionPtr read_number(const Schema& schema, const JsonObject& object, bool is_integer) {
    return at_path(schema, [&] { return number_of_schema(object, is_integer, rules_); });
  }

  Json root_;
  Definition& definition_;
  const UnsupportedKeywords unsupported_;
  JsonRules rules_;
  std::unordered_map<std::string, RuleIndex> by_reference_;
  std::deque<std::string> merged_texts_;
  std::deque<JsonDocument> merged_documents_;  // of merged_texts_
  size_t merged_bytes_ = 0;
  uint32_t nesting_ = 0;
  uint32_t references_ = 0;
};

}  // namespace

Result<ExpressionPtr> parse_json_schema(std::string_view schema, Definition& definition,
                                        UnsupportedKeywords unsupported) {
  const auto document = JsonDocument::parse(schema);
  if (document.has_error()) {
    return make_error(ErrorCode::kInvalidArgument, "schema: it is not valid JSON ({})", document.error().message);
  }
  try {
    return JsonSchemaParser(document->root(), definition, unsupported).read_root();
  } catch (const ErrorException& failure) {
    return failure.error();
  }
}

ExpressionPtr any_json_object(Definition& definition) {
  return JsonRules(definition).object();
}

}  // namespace millrace::grammar
