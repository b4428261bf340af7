#include "grammar/json_schema_document.h"

#include <charconv>

#include "base/result.h"
#include "grammar/json_schema_formats.h"
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

constexpr auto kPlainChars = [](const CharSet& chars) { return one_of(chars); };

ExpressionPtr parsed_pattern(std::string_view pattern, bool is_search) {
  auto expression = parse_regex(pattern, is_search, kPlainChars);
  if (expression.has_error()) {
    throw ErrorException(make_error(ErrorCode::kInvalidArgument, "pattern: {}", expression.error().message));
  }
  return std::move(*expression);
}

}  // namespace

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

ExpressionPtr SchemaDocument::pattern(std::string_view pattern) {
  return parsed_pattern(pattern, true);
}

const TextLanguage& SchemaDocument::pattern_language(std::string_view pattern) {
  const auto known = patterns_.find(pattern);
  if (known != patterns_.end()) return known->second;
  return patterns_.emplace(pattern, TextLanguage::of_expression(*parsed_pattern(pattern, true))).first->second;
}

const TextLanguage& SchemaDocument::format_language(std::string_view name) {
  const auto known = formats_.find(name);
  if (known != formats_.end()) return known->second;
  return formats_.emplace(name, TextLanguage::of_expression(*format_expression(name))).first->second;
}

}  // namespace millrace::grammar
