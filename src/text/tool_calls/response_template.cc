#include "text/tool_calls/response_template.h"

#include <algorithm>
#include <array>

#include "base/json_value.h"

namespace millrace::text {
namespace {

Error wrong(std::string_view what, std::string_view wanted) {
  return make_error(ErrorCode::kData, "response_template: {}: wanted {}", what, wanted);
}

/// Reads one literal, a list of them, or a regular expression, of which at most one is there.
Result<std::optional<Delimiter>> read_delimiter(JsonValue literal, JsonValue pattern, std::string_view name) {
  std::optional<Delimiter> none;
  std::string_view text;
  if (!pattern.is_missing()) {
    if (!literal.is_missing() || !pattern.get(text)) return wrong(name, "a literal or a pattern");
    auto made = Delimiter::pattern(text);
    if (made.has_error()) return wrong(name, made.error().message);
    return std::optional(std::move(*made));
  }
  if (literal.is_missing()) return none;
  std::vector<std::string> texts;
  if (literal.get(text)) texts.emplace_back(text);
  JsonArray array;
  if (literal.get(array)) {
    for (const JsonValue item : array) {
      if (!item.get(text)) return wrong(name, "a list of strings");
      texts.emplace_back(text);
    }
  }
  if (texts.empty() || std::ranges::any_of(texts, &std::string::empty)) return wrong(name, "a text");
  return std::optional(Delimiter::literals(std::move(texts)));
}

std::optional<ResponseContent::Kind> parse_kind(std::string_view word) {
  using enum ResponseContent::Kind;
  constexpr std::array<std::pair<std::string_view, ResponseContent::Kind>, 8> kKinds = {{{"", kText},
                                                                                         {"text", kText},
                                                                                         {"int", kInteger},
                                                                                         {"float", kFloat},
                                                                                         {"bool", kBoolean},
                                                                                         {"json", kJson},
                                                                                         {"xml-inline", kXmlInline},
                                                                                         {"kv-lines", kKeyValueLines}}};
  for (const auto& [name, kind] : kKinds) {
    if (name == word) return kind;
  }
  return std::nullopt;
}

std::string text_or(JsonValue value, std::string_view other) {
  std::string_view text;
  return std::string(value.get(text) ? text : other);
}

Result<ResponseContent> read_content(JsonValue kind, JsonValue args, std::string_view name) {
  ResponseContent content;
  const auto parsed = parse_kind(text_or(kind, ""));
  if (!parsed) return wrong(name, "a known content");
  content.kind = *parsed;
  content.strips = !args["strip"].is_false();
  content.has_unquoted_keys = args["unquoted_keys"].is_true();
  content.allows_other_than_json = args["allow_non_json"].is_true();
  content.merges_duplicates = args["merge_duplicates"].is_true();
  content.line_separator = text_or(args["line_sep"], content.line_separator);
  content.key_separator = text_or(args["kv_sep"], content.key_separator);
  if (content.line_separator.empty() || content.key_separator.empty()) return wrong(name, "separators");
  JsonArray marks;
  if (args["string_delims"].get(marks)) {
    for (const JsonValue pair : marks) {
      const std::string open = text_or(pair.at_pointer("/0"), "");
      const std::string close = text_or(pair.at_pointer("/1"), "");
      if (open.empty() || close.empty()) return wrong(name, "pairs in string_delims");
      content.string_delimiters.emplace_back(open, close);
    }
  }
  if (content.kind == ResponseContent::Kind::kXmlInline) {
    auto pattern = read_delimiter({}, args["tag_pattern"], name);
    if (pattern.has_error()) return pattern.error();
    if (!*pattern) return wrong(name, "a tag_pattern");
    content.tag_pattern = std::move(*pattern);
  }
  const JsonValue values = args["value_parser"];
  if (!values.is_missing()) {
    const bool is_name = values.is_string();
    auto parser = read_content(is_name ? values : values["name"], values["args"], name);
    if (parser.has_error()) return parser.error();
    content.values = std::make_shared<ResponseContent>(std::move(*parser));
  }
  return content;
}

ResponseTemplate::Target target_of(std::string_view name) {
  using enum ResponseTemplate::Target;
  if (name == "thinking" || name == "reasoning" || name == "reasoning_content") return kReasoning;
  if (name == "content") return kContent;
  return name == "tool_calls" ? kCalls : kOther;
}

Result<ResponseTemplate::Field> read_field(std::string_view name, JsonValue value) {
  ResponseTemplate::Field field;
  field.name = name;
  field.target = target_of(name);
  auto open = read_delimiter(value["open"], value["open_pattern"], name);
  if (open.has_error()) return open.error();
  auto close = read_delimiter(value["close"], value["close_pattern"], name);
  if (close.has_error()) return close.error();
  field.open = std::move(*open);
  field.close = std::move(*close);
  auto content = read_content(value["content"], value["content_args"], name);
  if (content.has_error()) return content.error();
  field.content = std::move(*content);
  field.join = text_or(value["join"], "");
  field.transforms_each = value["transform_each"].is_object();
  const JsonValue transform = field.transforms_each ? value["transform_each"] : value["transform"];
  if (!transform.is_missing()) field.transform = to_json(transform);
  if (field.transform.empty() && field.open && !field.open->group_names().empty()) {
    return wrong(name, "a transform that uses the named groups");
  }
  return field;
}

}  // namespace

Result<std::shared_ptr<const ResponseTemplate>> ResponseTemplate::parse(std::string_view json) {
  const auto document = JsonDocument::parse(json);
  JsonObject members;
  if (document.has_error() || !document->root().get(members)) return wrong("the whole", "an object");
  constexpr std::array<std::string_view, 5> kKeys = {"version", "defaults", "start_anchor", "start_anchor_pattern",
                                                     "fields"};
  for (const auto& [key, value] : members) {
    if (std::ranges::find(kKeys, key) == kKeys.end()) return wrong(key, "no such member");
  }
  int64_t version = 1;
  if (!members["version"].is_missing() && (!members["version"].get(version) || version != 1)) {
    return wrong("version", "1");
  }
  auto made = std::make_shared<ResponseTemplate>();
  auto anchor = read_delimiter(members["start_anchor"], members["start_anchor_pattern"], "start_anchor");
  if (anchor.has_error()) return anchor.error();
  if (!*anchor) return wrong("start_anchor", "a text or a pattern");
  made->anchor_ = std::move(*anchor);
  JsonObject fields;
  if (!members["fields"].get(fields) || fields.size() == 0) return wrong("fields", "an object with members");
  for (const auto& [name, value] : fields) {
    auto field = read_field(name, value);
    if (field.has_error()) return field.error();
    if (!field->open && made->implicit_field() != nullptr) return wrong(name, "an open: another field has none");
    made->fields_.push_back(std::move(*field));
  }
  // The first field by name wins where several begin at one position.
  std::ranges::sort(made->fields_, {}, &Field::name);
  return std::shared_ptr<const ResponseTemplate>(std::move(made));
}

std::string ResponseTemplate::prompt_end(std::string_view prompt) const {
  size_t end = 0;
  for (size_t from = 0; from < prompt.size();) {
    const Delimiter::Found found = anchor_->find(prompt, true, from);
    if (!found.match) break;
    end = found.match->end;
    from = found.match->begin + 1;
    while (from < prompt.size() && (static_cast<unsigned char>(prompt[from]) & 0xC0) == 0x80) ++from;
  }
  return std::string(prompt.substr(end));
}

const ResponseTemplate::Field* ResponseTemplate::implicit_field() const {
  const auto found = std::ranges::find_if(fields_, [](const Field& field) { return !field.open; });
  return found == fields_.end() ? nullptr : &*found;
}

bool ResponseTemplate::has(Target target) const {
  return std::ranges::any_of(fields_, [target](const Field& field) { return field.target == target; });
}

}  // namespace millrace::text
