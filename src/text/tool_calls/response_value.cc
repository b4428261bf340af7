#include "text/tool_calls/response_value.h"

#include <algorithm>

#include "base/json.h"
#include "base/json_value.h"
#include "text/tool_calls/partial_match.h"

namespace millrace::text {
namespace {

std::string json_string(std::string_view text) {
  std::string quoted;
  append_json_string(quoted, text);
  return quoted;
}

std::optional<std::string> checked_json(const std::string& text) {
  const auto document = JsonDocument::parse(text);
  if (document.has_error()) return std::nullopt;
  return to_json(document->root());
}

bool is_key_byte(char c) {
  return c == '_' || (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
         static_cast<unsigned char>(c) >= 0x80;
}

/// Returns the length of a JSON string with its quotes at the start of `text`, or 0 if it does not end.
size_t quoted_length(std::string_view text) {
  bool escaped = false;
  for (size_t i = 1; i < text.size(); ++i) {
    if (text[i] == '"' && !escaped) return i + 1;
    escaped = text[i] == '\\' && !escaped;
  }
  return 0;
}

/// Returns a dialect as JSON: strings between marks and keys without quotes get quotes. Nothing for a string that does
/// not end.
std::optional<std::string> rewrite_dialect(const ResponseContent& content, std::string_view text) {
  std::string out;
  char last = 0;  // the last byte that is no white space
  for (size_t at = 0; at < text.size();) {
    const std::string_view rest = text.substr(at);
    const auto mark = std::ranges::find_if(content.string_delimiters,
                                           [rest](const auto& pair) { return rest.starts_with(pair.first); });
    if (mark != content.string_delimiters.end()) {
      const size_t begin = mark->first.size();
      const size_t end = rest.find(mark->second, begin);
      if (end == std::string_view::npos) return std::nullopt;
      out += json_string(rest.substr(begin, end - begin));
      at += end + mark->second.size();
      last = '"';
      continue;
    }
    if (rest.front() == '"') {
      const size_t length = quoted_length(rest);
      if (length == 0) return std::nullopt;
      out += rest.substr(0, length);
      at += length;
      last = '"';
      continue;
    }
    if (content.has_unquoted_keys && (last == '{' || last == ',')) {
      const auto length = static_cast<size_t>(std::ranges::find_if_not(rest, is_key_byte) - rest.begin());
      if (length > 0 && rest.substr(length).starts_with(':')) {
        out += json_string(rest.substr(0, length));
        at += length;
        last = '"';
        continue;
      }
    }
    if (kAsciiSpace.find(rest.front()) == std::string_view::npos) last = rest.front();
    out += rest.front();
    ++at;
  }
  return out;
}

std::optional<std::string> parse_json_content(const ResponseContent& content, std::string_view text) {
  const bool is_dialect = content.has_unquoted_keys || !content.string_delimiters.empty();
  auto json = is_dialect ? rewrite_dialect(content, text) : std::optional(std::string(text));
  if (json) json = checked_json(*json);
  if (!json && content.allows_other_than_json) return json_string(without_space(text));
  return json;
}

using Member = std::pair<std::string, std::string>;  // a key and its value in JSON

std::optional<std::string> value_of_member(const ResponseContent& content, std::string_view text) {
  return content.values == nullptr ? json_string(text) : parse_response_content(*content.values, text);
}

std::string object_of(const std::vector<Member>& members, bool merges_duplicates) {
  std::string out = "{";
  std::vector<std::string> done;
  for (size_t i = 0; i < members.size(); ++i) {
    const std::string& key = members[i].first;
    if (std::ranges::find(done, key) != done.end()) continue;
    done.push_back(key);
    std::vector<std::string> values;
    for (const Member& member : members) {
      if (member.first == key) values.push_back(member.second);
    }
    out += (i == 0 ? "" : ", ") + json_string(key) + ": ";
    if (values.size() == 1 || !merges_duplicates) {
      out += values.back();
      continue;
    }
    out += '[';
    for (size_t k = 0; k < values.size(); ++k) out += (k == 0 ? "" : ", ") + values[k];
    out += ']';
  }
  return out + '}';
}

std::optional<std::string> parse_xml(const ResponseContent& content, std::string_view text) {
  std::vector<Member> members;
  for (size_t from = 0; from < text.size();) {
    const Delimiter::Found found = content.tag_pattern->find(text, true, from);
    if (!found.match) break;
    const auto& groups = found.match->groups;
    const auto key = groups.find("key");
    const auto value = groups.find("value");
    if (key != groups.end() && value != groups.end()) {
      auto parsed = value_of_member(content, value->second);
      if (!parsed) return std::nullopt;
      members.emplace_back(key->second, *std::move(parsed));
    }
    from = found.match->end;
  }
  return object_of(members, content.merges_duplicates);
}

std::optional<std::string> parse_lines(const ResponseContent& content, std::string_view text) {
  std::vector<Member> members;
  while (!text.empty()) {
    const size_t end = std::min(text.find(content.line_separator), text.size());
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + content.line_separator.size(), text.size()));
    const size_t at = line.find(content.key_separator);
    if (at == std::string_view::npos) continue;
    auto value = value_of_member(content, without_space(line.substr(at + content.key_separator.size())));
    if (!value) return std::nullopt;
    members.emplace_back(without_space(line.substr(0, at)), *std::move(value));
  }
  return object_of(members, false);
}

/// Returns the value that a path leads to from `value`, or nothing.
std::optional<std::string> follow(JsonValue value, std::string_view path) {
  while (!path.empty()) {
    const size_t end = std::min(path.find('.'), path.size());
    value = value[path.substr(0, end)];
    path.remove_prefix(std::min(end + 1, path.size()));
  }
  return value.is_missing() ? std::nullopt : std::optional(to_json(value));
}

/// What the paths of a transform refer to.
struct TransformScope {
  const Captures& captures;
  JsonValue content;
  JsonValue element;
};

std::optional<std::string> resolve(std::string_view path, const TransformScope& scope) {
  const size_t end = std::min(path.find('.'), path.size());
  const std::string_view first = path.substr(0, end);
  const std::string_view rest = path.substr(std::min(end + 1, path.size()));
  if (!scope.element.is_missing() && !scope.element[first].is_missing()) return follow(scope.element[first], rest);
  if (first == "content" && scope.element.is_missing()) return follow(scope.content, rest);
  const auto capture = scope.captures.find(first);
  if (capture == scope.captures.end() || !rest.empty()) return std::nullopt;
  return json_string(capture->second);
}

std::optional<std::string> fill(JsonValue skeleton, const TransformScope& scope) {
  std::string_view text;
  if (skeleton.get(text)) {
    const bool is_path = text.size() > 2 && text.front() == '{' && text.back() == '}';
    return is_path ? resolve(text.substr(1, text.size() - 2), scope) : json_string(text);
  }
  std::string out;
  JsonObject object;
  if (skeleton.get(object)) {
    for (const auto& [key, value] : object) {
      const auto filled = fill(value, scope);
      if (!filled) return std::nullopt;
      out += (out.empty() ? "{" : ", ") + json_string(key) + ": " + *filled;
    }
    return out.empty() ? "{}" : out + '}';
  }
  JsonArray array;
  if (!skeleton.get(array)) return to_json(skeleton);
  for (const JsonValue item : array) {
    const auto filled = fill(item, scope);
    if (!filled) return std::nullopt;
    out += (out.empty() ? "[" : ", ") + *filled;
  }
  return out.empty() ? "[]" : out + ']';
}

}  // namespace

std::optional<std::string> parse_response_content(const ResponseContent& content, std::string_view text) {
  using Kind = ResponseContent::Kind;
  const std::string trimmed(without_space(text));
  switch (content.kind) {
    case Kind::kText: return json_string(content.strips ? std::string_view(trimmed) : text);
    case Kind::kInteger:
    case Kind::kFloat: return is_json_number(trimmed) ? std::optional(trimmed) : std::nullopt;
    case Kind::kBoolean: return trimmed == "true" || trimmed == "1" ? "true" : "false";
    case Kind::kJson: return parse_json_content(content, text);
    case Kind::kXmlInline: return parse_xml(content, text);
    case Kind::kKeyValueLines: break;
  }
  return parse_lines(content, text);
}

std::optional<std::string> transform_response(std::string_view skeleton, const Captures& captures,
                                              std::string_view content, std::string_view element) {
  const auto skeleton_json = JsonDocument::parse(skeleton);
  const auto content_json = JsonDocument::parse(content);
  if (skeleton_json.has_error() || content_json.has_error()) return std::nullopt;
  if (element.empty()) return fill(skeleton_json->root(), {captures, content_json->root(), {}});
  const auto element_json = JsonDocument::parse(element);
  if (element_json.has_error()) return std::nullopt;
  return fill(skeleton_json->root(), {captures, content_json->root(), element_json->root()});
}

std::string cast_arguments(const std::string& arguments, const std::string& tool, const ParameterTypes& types) {
  const auto document = JsonDocument::parse(arguments);
  JsonObject members;
  if (document.has_error() || !document->root().get(members)) return arguments;
  std::string out;
  for (const auto& [key, value] : members) {
    const ValueTypes wanted = types.of(tool, std::string(key));
    std::string_view text;
    const bool casts = value.get(text) && !wanted.has(ValueType::kString) && !wanted.is_any();
    out +=
        (out.empty() ? "{" : ", ") + json_string(key) + ": " + (casts ? value_to_json(text, wanted) : to_json(value));
  }
  return out.empty() ? "{}" : out + '}';
}

}  // namespace millrace::text
