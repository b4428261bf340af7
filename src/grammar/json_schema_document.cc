#include "grammar/json_schema_document.h"

#include <algorithm>
#include <charconv>
#include <vector>

#include "base/json.h"
#include "base/result.h"
#include "grammar/json_schema_formats.h"
#include "grammar/json_schema_keywords.h"
#include "grammar/regex_parser.h"

namespace millrace::grammar {
namespace {

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

SearchPattern parsed_pattern(std::string_view pattern) {
  auto parsed = parse_search_pattern(pattern);
  if (parsed.has_error()) {
    throw ErrorException(make_error(ErrorCode::kInvalidArgument, "pattern: {}", parsed.error().message));
  }
  return std::move(*parsed);
}

/// A condition on the text from its begin on, `(?=…)` or `(?!…)` after the first `^` of a pattern.
struct LookAhead {
  std::string pattern;
  bool is_negated = false;
};

/// Calls visit(character) for each character of a pattern from `begin` on that is neither escaped nor in a class, until
/// it returns true. Returns that position, or the pattern's size.
template <class Visit>
size_t find_syntax(std::string_view pattern, size_t begin, const Visit& visit) {
  bool in_class = false;
  for (size_t at = begin; at < pattern.size(); ++at) {
    const char c = pattern[at];
    if (c == '\\') {
      ++at;
    } else if (in_class) {
      in_class = c != ']';
    } else if (c == '[') {
      in_class = true;
    } else if (visit(c)) {
      return at;
    }
  }
  return pattern.size();
}

/// Removes the conditions at the begin of a pattern, as long as they hold for all of its alternatives.
std::vector<LookAhead> take_look_ahead(std::string& pattern) {
  std::vector<LookAhead> conditions;
  while (pattern.starts_with("^(?=") || pattern.starts_with("^(?!")) {
    int depth = 0;
    const size_t at = find_syntax(pattern, 1, [&depth](char c) {
      if (c == '(') ++depth;
      return c == ')' && --depth == 0;
    });
    if (at >= pattern.size()) break;
    conditions.push_back({"^(?:" + pattern.substr(4, at - 4) + ")", pattern[3] == '!'});
    pattern = "^" + pattern.substr(at + 1);
  }
  return conditions;
}

/// Returns whether a pattern has several outermost alternatives.
bool has_alternatives(std::string_view pattern) {
  int depth = 0;
  return find_syntax(pattern, 0, [&depth](char c) {
           if (c == '(' || c == ')') depth += c == '(' ? 1 : -1;
           return c == '|' && depth == 0;
         }) < pattern.size();
}

/// Appends a small schema as JSON without its descriptions. Returns false if it is not small.
bool append_undescribed(std::string& text, JsonValue schema) {
  constexpr size_t kSmallBytes = 4096;
  if (text.size() > kSmallBytes) return false;
  JsonArray array;
  if (schema.get(array)) {
    text += '[';
    for (const JsonValue item : array) {
      if (!append_undescribed(text, item)) return false;
      text += ',';
    }
    text += ']';
    return true;
  }
  JsonObject object;
  if (!schema.get(object)) {
    append_json(text, schema);
    return true;
  }
  text += '{';
  for (const JsonMember& member : object) {
    const bool is_description = member.key == "title" || member.key == "description" || member.key == "$comment";
    if (is_description && member.value.is_string()) continue;
    append_json_string(text, member.key);
    text += ':';
    if (member.key == "enum" || member.key == "const" || member.key == "default") {
      append_json(text, member.value);
    } else if (!append_undescribed(text, member.value)) {
      return false;
    }
    text += ',';
  }
  text += '}';
  return true;
}

TextLanguage language_of_pattern(std::string_view pattern, ReadWork& work) {
  std::string rest(pattern);
  const std::vector<LookAhead> conditions = take_look_ahead(rest);
  if (!conditions.empty() && has_alternatives(rest)) (void)parsed_pattern(pattern);  // reports it
  TextLanguage language = TextLanguage::of_expression(*parsed_pattern(rest).expression, work);
  for (const LookAhead& condition : conditions) {
    const TextLanguage met = TextLanguage::of_expression(*parsed_pattern(condition.pattern).expression, work);
    language = language.and_also(condition.is_negated ? met.complement(work) : met, work);
  }
  return language;
}

}  // namespace

SchemaDocument::SchemaDocument(JsonValue root) : root_(root) {
  std::string_view draft;
  if (root["$schema"].get(draft)) ignores_beside_ref_ = draft.find("/draft-0") != std::string_view::npos;
}

bool SchemaDocument::is_effective(JsonObject schema, const JsonMember& member) const {
  if (!is_constraint(schema, member)) return false;
  return !ignores_beside_ref_ || member.key == "$ref" || !schema["$ref"].is_string();
}

const void* SchemaDocument::identity_of(JsonValue schema) {
  const auto [entry, is_new] = identities_.try_emplace(schema.identity(), schema.identity());
  if (!is_new) return entry->second;
  std::string text;
  if (append_undescribed(text, schema))
    entry->second = by_text_.try_emplace(std::move(text), entry->second).first->second;
  return entry->second;
}

/// Names each schema that has an "$id", an "id" or an anchor. `base` is the nearest "$id" around it.
void SchemaDocument::find_names(JsonValue value, std::string_view base, uint32_t depth) {
  constexpr uint32_t kMaxDepth = 256;
  if (depth > kMaxDepth) return;
  JsonArray array;
  if (value.get(array)) {
    for (const JsonValue item : array) find_names(item, base, depth + 1);
    return;
  }
  JsonObject object;
  if (!value.get(object)) return;
  for (const char* keyword : {"$id", "id"}) {
    std::string_view id;
    if (!object[keyword].get(id)) continue;
    if (id.ends_with('#')) id.remove_suffix(1);
    by_name_.try_emplace(std::string(id), value);
    if (!id.starts_with('#')) base = id;
  }
  std::string_view dynamic;
  if (object["$dynamicAnchor"].get(dynamic)) ++dynamic_anchors_[std::string(dynamic)];
  if (object["$recursiveAnchor"].is_true()) ++dynamic_anchors_[""];
  for (const char* keyword : {"$anchor", "$dynamicAnchor"}) {
    std::string_view anchor;
    if (!object[keyword].get(anchor)) continue;
    by_name_.try_emplace("#" + std::string(anchor), value);
    by_name_.try_emplace(std::string(base) + "#" + std::string(anchor), value);
  }
  for (const JsonMember& member : object) {
    if (member.key != "enum" && member.key != "const") find_names(member.value, base, depth + 1);
  }
}

JsonValue SchemaDocument::referred(std::string_view reference) {
  const auto known = referred_.find(std::string(reference));
  if (known != referred_.end()) return known->second;
  const JsonValue found = find_referred(reference);
  referred_.emplace(reference, found);
  return found;
}

JsonValue SchemaDocument::find_referred(std::string_view reference) {
  if (reference.starts_with('#')) {
    const JsonValue found = root_.at_pointer(percent_decoded(reference.substr(1)));
    if (!found.is_missing()) return found;
  }
  if (!has_names_) find_names(root_, "", 0);
  has_names_ = true;
  const size_t fragment = std::min(reference.find('#'), reference.size());
  auto named = by_name_.find(std::string(reference));
  if (named == by_name_.end() && fragment > 0) named = by_name_.find(std::string(reference.substr(0, fragment)));
  if (named != by_name_.end()) {
    const bool is_whole = named->first == reference || fragment + 1 >= reference.size();
    const JsonValue found =
        is_whole ? named->second : named->second.at_pointer(percent_decoded(reference.substr(fragment + 1)));
    if (!found.is_missing()) return found;
  }
  if (reference.starts_with('#')) {
    throw ErrorException(make_error(ErrorCode::kInvalidArgument, "$ref: there is no '{}'", reference.substr(0, 256)));
  }
  throw ErrorException(make_error(ErrorCode::kInvalidArgument,
                                  "$ref: only references within the schema are supported, not '{}'",
                                  reference.substr(0, 256)));
}

JsonValue SchemaDocument::dynamically_referred(std::string_view reference) {
  const JsonValue found = referred(reference);
  if (!has_names_) find_names(root_, "", 0);
  has_names_ = true;
  const size_t fragment = reference.find('#');
  const auto anchors =
      dynamic_anchors_.find(std::string(fragment == std::string_view::npos ? "" : reference.substr(fragment + 1)));
  if (anchors == dynamic_anchors_.end() || anchors->second == 1) return found;
  throw ErrorException(make_error(ErrorCode::kInvalidArgument,
                                  "a dynamic reference to '{}' is not supported, which several schemas are named",
                                  reference.substr(0, 256)));
}

ExpressionPtr SchemaDocument::pattern(std::string_view pattern) {
  std::string rest(pattern);
  if (!take_look_ahead(rest).empty()) return nullptr;
  SearchPattern parsed = parsed_pattern(pattern);
  return parsed.has_assertions ? nullptr : std::move(parsed.expression);
}

const TextLanguage& SchemaDocument::pattern_language(std::string_view pattern) {
  const auto known = patterns_.find(pattern);
  if (known != patterns_.end()) return known->second;
  return patterns_.emplace(pattern, language_of_pattern(pattern, work_)).first->second;
}

const TextLanguage& SchemaDocument::format_language(std::string_view name, bool is_bound) {
  const auto known = formats_.find({std::string(name), is_bound});
  if (known != formats_.end()) return known->second;
  const ExpressionPtr expression = is_bound ? format_bound(name) : format_expression(name);
  return formats_.emplace(std::pair(std::string(name), is_bound), TextLanguage::of_expression(*expression, work_))
      .first->second;
}

}  // namespace millrace::grammar
