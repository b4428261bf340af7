#include "grammar/json_writer.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <utility>
#include <vector>

#include "base/json.h"
#include "base/result.h"
#include "grammar/read_work.h"
#include "grammar/regex_parser.h"
#include "grammar/uncut_values.h"

namespace millrace::grammar {
namespace {

[[noreturn]] void refuse(std::string_view what, std::string_view text) {
  constexpr size_t kMaxShownBytes = 64;
  throw ErrorException(make_error(ErrorCode::kInvalidArgument, "calls of this model cannot have {} '{}'", what,
                                  text.substr(0, kMaxShownBytes)));
}

}  // namespace

const TextLanguage& JsonWriter::bare_keys() {
  if (!bare_keys_) {
    ReadWork work;
    bare_keys_ = TextLanguage::of_expression(**parse_regex(notation_.bare_keys), work);
  }
  return *bare_keys_;
}

std::string JsonWriter::value(JsonValue value) {
  std::string_view text;
  JsonArray array;
  JsonObject object;
  if (value.get(text)) return string(text);
  if (value.is_true()) return std::string(notation_.true_word);
  if (value.is_false()) return std::string(notation_.false_word);
  if (value.is_null()) return std::string(notation_.null_word);
  std::vector<std::string> parts;
  if (value.get(array)) {
    for (const JsonValue item : array) parts.push_back(this->value(item));
    return fmt::format("[{}]", fmt::join(parts, notation_.separator));
  }
  if (value.get(object)) {
    for (const JsonMember& member : object) {
      parts.push_back(fmt::format("{}{}{}", key(member.key), notation_.colon, this->value(member.value)));
    }
    return fmt::format("{{{}}}", fmt::join(parts, notation_.separator));
  }
  return to_json(value);
}

std::string JsonWriter::key(std::string_view name) {
  return notation_.has_bare_keys() && bare_keys().accepts(name) ? std::string(name) : string(name);
}

std::string JsonWriter::argument_key(std::string_view name) {
  if (!notation_.has_keyword_arguments) return key(name) + std::string(notation_.colon);
  if (!bare_keys().accepts(name)) refuse("a parameter", name);
  return std::string(name) + '=';
}

std::string JsonWriter::string(std::string_view text) const {
  if (!notation_.has_escapes) {
    if (notation_.uncut != nullptr && notation_.uncut->has_tag(text)) refuse("the value", text);
    return fmt::format("{}{}{}", notation_.quote, text, notation_.quote);
  }
  std::string json;
  append_json_string(json, text);
  return notation_.uncut == nullptr ? json : notation_.uncut->escaped(std::move(json));
}

}  // namespace millrace::grammar
