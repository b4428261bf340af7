#include "grammar/json_schema_merge.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "grammar/json_schema_keywords.h"
#include "grammar/json_schema_values.h"

namespace millrace::grammar {
namespace {

[[noreturn]] void refuse_merge(std::string_view problem) {
  throw ErrorException(make_error(ErrorCode::kInvalidArgument, "{}", problem));
}

std::string quoted_key(std::string_view key) {
  std::string text;
  append_json_string(text, key);
  return text;
}

std::string joined(const std::vector<std::string>& parts, char open, char close) {
  return fmt::format("{}{}{}", open, fmt::join(parts, ","), close);
}

std::string both_of(JsonValue left, JsonValue right) {
  return fmt::format(R"({{"allOf":[{},{}]}})", to_json(left), to_json(right));
}

/// Bounds the work of comparing the members of two schemas with each other.
void check_sizes(size_t left, size_t right) {
  constexpr size_t kMaxPairs = 4'000'000;
  if ((left + 1) * (right + 1) > kMaxPairs) refuse_merge("they have too many members to be merged");
}

/// Returns the items of both arrays, each once.
std::string union_of(JsonValue left, JsonValue right) {
  std::vector<std::string> items;
  for (const JsonValue value : {left, right}) {
    JsonArray array;
    if (!value.get(array)) refuse_merge("wanted arrays");
    check_sizes(array.size(), array.size());
    for (const JsonValue item : array) {
      std::string text = to_json(item);
      if (std::ranges::find(items, text) == items.end()) items.push_back(std::move(text));
    }
  }
  return joined(items, '[', ']');
}

/// Merges the constraints of two schemas keyword by keyword.
class SchemaMerger {
 public:
  SchemaMerger(JsonObject left, JsonObject right) : left_(left), right_(right) {}

  std::string merge() {
    check(left_, right_);
    check(right_, left_);
    for (const JsonMember& member : left_) {
      if (!is_constraint(left_, member)) continue;
      const JsonValue other = right_[member.key];
      const bool is_in_both = !other.is_missing() && is_constraint(right_, {member.key, other});
      add(member.key, is_in_both ? combined(member.key, member.value, other) : to_json(member.value));
    }
    for (const JsonMember& member : right_) {
      const JsonValue other = left_[member.key];
      const bool is_in_both = !other.is_missing() && is_constraint(left_, {member.key, other});
      if (is_constraint(right_, member) && !is_in_both) add(member.key, to_json(member.value));
    }
    if (is_empty_) return "false";
    if (!conjuncts_.empty()) add("allOf", joined(conjuncts_, '[', ']'));
    return joined(members_, '{', '}');
  }

 private:
  void add(std::string_view key, const std::string& value) {
    if (!value.empty()) members_.push_back(fmt::format("{}:{}", quoted_key(key), value));
  }

  /// Refuses a keyword whose meaning depends on its neighbours in the same schema.
  static void check(JsonObject schema, JsonObject other) {
    if (const std::string_view name = unenforced_keyword(schema); !name.empty()) {
      refuse_merge(fmt::format("the keyword '{}' is not supported", name));
    }
    for (const char* name : {"exclusiveMinimum", "exclusiveMaximum"}) {
      if (schema[name].is_bool())
        refuse_merge(fmt::format("'{}' as a flag is not supported in schemas that are merged", name));
    }
    const bool has_positions = schema["items"].is_array() || !schema["prefixItems"].is_missing();
    if (has_positions && has_keyword_for(other, Constrained::kArray)) {
      refuse_merge("items of known positions are not supported in schemas that are merged");
    }
    JsonObject known;
    JsonObject named;
    (void)schema["properties"].get(known);
    if (schema["additionalProperties"].is_missing() || schema["additionalProperties"].is_true()) return;
    if (!other["properties"].get(named)) return;
    check_sizes(known.size(), named.size());
    for (const JsonMember& member : named) {
      if (!known[member.key].is_missing()) continue;
      refuse_merge(
          fmt::format("'additionalProperties' and the property '{}' of another schema are not supported together",
                      member.key.substr(0, 64)));
    }
  }

  /// Returns the value for both; empty if another member says it.
  std::string combined(std::string_view key, JsonValue left, JsonValue right) {
    if (key == "allOf") {
      JsonArray parts;
      for (const JsonValue value : {left, right}) {
        if (!value.get(parts)) refuse_merge("allOf: wanted arrays");
        for (const JsonValue part : parts) conjuncts_.push_back(to_json(part));
      }
      return {};
    }
    if (to_json(left) == to_json(right)) return to_json(left);
    if (key == "type") return common_types(left, right);
    if (key == "required") return union_of(left, right);
    if (key == "properties") return properties_of(left, right);
    if (key == "additionalProperties" || key == "items") return both_of(left, right);
    if (key == "enum") return common_values(left, right);
    if (key == "$ref" || key == "anyOf" || key == "oneOf") {
      conjuncts_.push_back(fmt::format(R"({{"{}":{}}})", key, to_json(right)));
      return to_json(left);
    }
    if (key == "const") {
      is_empty_ = is_empty_ || !are_equal(left, right);
      return to_json(left);
    }
    const bool is_lower = key.starts_with("min") || key == "exclusiveMinimum";
    const bool is_bound = is_lower || key.starts_with("max") || key == "exclusiveMaximum";
    if (!is_bound || !left.is_number() || !right.is_number())
      refuse_merge(fmt::format("two of '{}' are not supported", key));
    const auto order = compare_numbers(left, right);
    return to_json((is_lower ? order > 0 : order < 0) ? left : right);
  }

  std::string properties_of(JsonValue left, JsonValue right) {
    JsonObject ours;
    JsonObject theirs;
    if (!left.get(ours) || !right.get(theirs)) refuse_merge("properties: wanted objects");
    check_sizes(ours.size(), theirs.size());
    std::vector<std::string> members;
    for (const auto& [name, value] : ours) {
      const JsonValue other = theirs[name];
      const bool is_single = other.is_missing() || to_json(other) == to_json(value);
      members.push_back(fmt::format("{}:{}", quoted_key(name), is_single ? to_json(value) : both_of(value, other)));
    }
    for (const auto& [name, value] : theirs) {
      if (ours[name].is_missing()) members.push_back(fmt::format("{}:{}", quoted_key(name), to_json(value)));
    }
    return joined(members, '{', '}');
  }

  std::string common_types(JsonValue left, JsonValue right) {
    const auto names_of = [](JsonValue types) {
      std::vector<std::string_view> names(1);
      JsonArray array;
      if (types.get(names[0])) return names;
      names.clear();
      if (!types.get(array)) refuse_merge("type: wanted a string, or an array of strings");
      for (const JsonValue item : array) {
        if (!item.get(names.emplace_back())) refuse_merge("type: wanted strings");
      }
      return names;
    };
    const auto has = [](const std::vector<std::string_view>& names, std::string_view name) {
      return std::ranges::find(names, name) != names.end() ||
             (name == "integer" && std::ranges::find(names, "number") != names.end());
    };
    const auto ours = names_of(left);
    const auto theirs = names_of(right);
    std::vector<std::string> common;
    for (const std::string_view name : ours) {
      if (has(theirs, name)) common.push_back(quoted_key(name));
    }
    for (const std::string_view name : theirs) {
      const std::string text = quoted_key(name);
      if (has(ours, name) && std::ranges::find(common, text) == common.end()) common.push_back(text);
    }
    is_empty_ = is_empty_ || common.empty();
    return common.size() == 1 ? common[0] : joined(common, '[', ']');
  }

  std::string common_values(JsonValue left, JsonValue right) {
    JsonArray ours;
    JsonArray theirs;
    if (!left.get(ours) || !right.get(theirs)) refuse_merge("enum: wanted arrays");
    check_sizes(ours.size(), theirs.size());
    std::vector<std::string> common;
    for (const JsonValue value : ours) {
      const bool is_common = std::ranges::any_of(theirs, [&](JsonValue each) { return are_equal(value, each); });
      if (is_common) common.push_back(to_json(value));
    }
    is_empty_ = is_empty_ || common.empty();
    return joined(common, '[', ']');
  }

  JsonObject left_;
  JsonObject right_;
  std::vector<std::string> members_;
  std::vector<std::string> conjuncts_;  // further schemas, which could not be merged by keyword
  bool is_empty_ = false;               // no instance satisfies both
};

}  // namespace

Result<std::string> merge_schemas(JsonObject left, JsonObject right) {
  try {
    return SchemaMerger(left, right).merge();
  } catch (const ErrorException& failure) {
    return failure.error();
  }
}

std::string without_keyword(JsonObject schema, std::string_view keyword) {
  std::vector<std::string> members;
  for (const JsonMember& member : schema) {
    if (member.key == keyword || !is_constraint(schema, member)) continue;
    members.push_back(fmt::format("{}:{}", quoted_key(member.key), to_json(member.value)));
  }
  return joined(members, '{', '}');
}

}  // namespace millrace::grammar
