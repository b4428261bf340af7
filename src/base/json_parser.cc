#include "base/json_parser.h"

#include <algorithm>

#include "base/utf8.h"

namespace millrace {
namespace {

namespace ondemand = simdjson::ondemand;

constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";
constexpr std::string_view kSpace = " \n\r\t";
constexpr size_t kMaxTextBytes = UINT32_MAX - simdjson::SIMDJSON_PADDING;
constexpr size_t kBytesPerNode = 8;  // of usual texts, at least
constexpr size_t kRoomBytes = size_t{64} << 10;
constexpr size_t kMaxQuotedBytes = 32;
constexpr std::string_view kBadEscape = "the string has an escape that JSON lacks, or half of a surrogate pair";

size_t first_invalid_utf8(std::string_view text) {
  size_t at = 0;
  while (at < text.size()) {
    const DecodedUtf8 step = decode_utf8(text.substr(at));
    if (!step.valid) break;
    at += step.length;
  }
  return at;
}

/// Returns the offset of the first control character within a string, which simdjson reports without a location.
size_t first_control_in_string(std::string_view text) {
  bool in_string = false;
  for (size_t at = 0; at < text.size(); ++at) {
    if (text[at] == '"') {
      in_string = !in_string;
    } else if (in_string && text[at] == '\\') {
      ++at;
    } else if (in_string && static_cast<unsigned char>(text[at]) < 0x20) {
      return at;
    }
  }
  return text.size();
}

bool is_word(std::string_view token) {
  return std::ranges::all_of(token, [](char c) {
    return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || c == '-' || c == '.';
  });
}

}  // namespace

JsonParser::JsonParser(std::string_view text, const JsonOptions& options, JsonDocument& document)
    : text_(text), options_(options), result_(document) {}

void JsonParser::run() {
  start();
  result_.nodes_.reserve(text_.size() / kBytesPerNode + 1);
  bool is_scalar = false;
  check(document_.is_scalar().get(is_scalar), "a value");
  if (is_scalar) {
    std::string_view token;
    check(document_.raw_json_token().get(token), "a value");
    token = original(token);
    if (token.starts_with('"')) {
      read_string(document_, token);
    } else {
      read_scalar(token);
    }
    if (scalar_end_ < text_.size()) fail_wanting(scalar_end_, "the end of the text");
    return;
  }
  ondemand::value root;
  check(document_.get_value().get(root), "a value");
  read_value(root);
  if (location() < text_.size()) fail_wanting(location(), "the end of the text");
}

void JsonParser::start() {
  if (text_.size() > kMaxTextBytes) fail_at(0, "the text is larger than 4 GiB");
  copy_ = simdjson::padded_string(text_);
  const size_t begin = text_.starts_with(kByteOrderMark) ? kByteOrderMark.size() : 0;
  std::fill_n(copy_.data(), begin, ' ');
  if (text_.find_first_not_of(kSpace, begin) == std::string_view::npos) fail_wanting(text_.size(), "a value");
  if (const auto error = parser_.allocate(copy_.size(), options_.max_depth + 2)) {
    fail_at(0, fmt::format("reading {} bytes failed: {}", text_.size(), simdjson::error_message(error)));
  }
  switch (const auto error = parser_.iterate(copy_).get(document_)) {
    case simdjson::SUCCESS: return;
    case simdjson::UTF8_ERROR: {
      const size_t offset = first_invalid_utf8(text_);
      fail_at(offset, fmt::format("byte 0x{:02x} is not valid UTF-8", static_cast<uint8_t>(text_[offset])));
    }
    case simdjson::UNESCAPED_CHARS: {
      const size_t offset = first_control_in_string(text_);
      if (offset == text_.size()) fail_at(offset, "the text ends within a string");
      fail_at(offset, fmt::format("the control character 0x{:02x} within a string", text_[offset]));
    }
    case simdjson::UNCLOSED_STRING: fail_at(text_.size(), "the text ends within a string");
    default: fail_at(0, simdjson::error_message(error));
  }
}

void JsonParser::read_value(ondemand::value value) {
  const std::string_view token = original(value.raw_json_token());
  if (token.empty()) fail_wanting(text_.size(), "a value");
  switch (token.front()) {
    case '{': {
      ondemand::object object;
      check(value.get_object().get(object), "the end of the object");
      read_object(object, offset_of(token));
      break;
    }
    case '[': {
      ondemand::array array;
      check(value.get_array().get(array), "the end of the array");
      read_array(array, offset_of(token));
      break;
    }
    case '"': read_string(value, token); break;
    default: read_scalar(token);
  }
}

void JsonParser::read_object(ondemand::object object, size_t offset) {
  const size_t node = open(JsonKind::kObject, offset);
  uint32_t size = 0;
  for (auto entry : object) {
    ondemand::field field;
    if (std::move(entry).get(field) != simdjson::SUCCESS) fail_in_object();
    read_key(field);
    read_value(field.value());
    ++size;
  }
  close(node, size);
}

void JsonParser::read_array(ondemand::array array, size_t offset) {
  const size_t node = open(JsonKind::kArray, offset);
  uint32_t size = 0;
  for (auto entry : array) {
    ondemand::value item;
    check(entry.get(item), "',' or ']'");
    read_value(item);
    ++size;
  }
  close(node, size);
}

void JsonParser::read_key(ondemand::field& field) {
  const char* const begin = field.key().raw();
  const std::string_view rest(begin, static_cast<size_t>(copy_.data() + copy_.size() - begin));
  const std::string_view key = original(rest.substr(0, rest.find('"')));
  if (key.find('\\') == std::string_view::npos) return add(JsonKind::kString, key);
  std::string_view decoded;
  if (field.unescaped_key().get(decoded) != simdjson::SUCCESS) fail_at(offset_of(key) - 1, kBadEscape);
  add_decoded(decoded);
}

template <class Value>
void JsonParser::read_string(Value& value, std::string_view token) {
  scalar_end_ = offset_of(token) + token.size();
  const std::string_view text = token.substr(1, token.find_last_of('"') - 1);
  if (text.find('\\') == std::string_view::npos) {
    (void)value.get_raw_json_string();  // goes on to the next token
    return add(JsonKind::kString, text);
  }
  std::string_view decoded;
  if (value.get_string().get(decoded) != simdjson::SUCCESS) fail_at(offset_of(token), kBadEscape);
  add_decoded(decoded);
}

void JsonParser::read_scalar(std::string_view token) {
  scalar_end_ = offset_of(token) + token.size();
  token = token.substr(0, token.find_last_not_of(kSpace) + 1);
  if (token == "null") return result_.nodes_.push_back({.kind = JsonKind::kNull, .size = 0, .text = nullptr});
  if (token == "true" || token == "false") {
    return result_.nodes_.push_back({.kind = JsonKind::kBool, .size = token == "true", .text = nullptr});
  }
  const bool is_non_finite = token == "NaN" || token == "Infinity" || token == "-Infinity";
  if (is_json_number(token) || (is_non_finite && options_.accepts_non_finite)) return add(JsonKind::kNumber, token);
  if (!is_word(token)) fail_wanting(offset_of(token), "a value");
  fail_at(offset_of(token), fmt::format("found {}, wanted a value", token.substr(0, kMaxQuotedBytes)));
}

size_t JsonParser::open(JsonKind kind, size_t offset) {
  if (++depth_ > options_.max_depth) {
    fail_at(offset, fmt::format("it is nested more than {} deep", options_.max_depth));
  }
  result_.nodes_.push_back({.kind = kind, .size = 0, .span = 0});
  return result_.nodes_.size() - 1;
}

void JsonParser::close(size_t node, uint32_t size) {
  --depth_;
  result_.nodes_[node].size = size;
  result_.nodes_[node].span = result_.nodes_.size() - node;
}

void JsonParser::add(JsonKind kind, std::string_view text) {
  result_.nodes_.push_back({.kind = kind, .size = static_cast<uint32_t>(text.size()), .text = text.data()});
}

void JsonParser::add_decoded(std::string_view text) {
  if (text.size() > room_bytes_ || room_ == nullptr) {
    room_bytes_ = std::max(text.size(), kRoomBytes);
    result_.decoded_.push_back(std::make_unique_for_overwrite<char[]>(room_bytes_));
    room_ = result_.decoded_.back().get();
  }
  std::ranges::copy(text, room_);
  add(JsonKind::kString, {room_, text.size()});
  room_ += text.size();
  room_bytes_ -= text.size();
}

size_t JsonParser::offset_of(std::string_view part) const {
  return static_cast<size_t>(part.data() - text_.data());
}

std::string_view JsonParser::original(std::string_view copied) const {
  return text_.substr(static_cast<size_t>(copied.data() - copy_.data()), copied.size());
}

size_t JsonParser::location() {
  const char* at = copy_.data() + copy_.size();  // when no token is left
  (void)document_.current_location().get(at);
  return static_cast<size_t>(at - copy_.data());
}

void JsonParser::check(simdjson::error_code error, std::string_view wanted) {
  if (error != simdjson::SUCCESS) fail_wanting(location(), wanted);
}

void JsonParser::fail_in_object() {
  const size_t at = location();
  const size_t before = text_.find_last_not_of(kSpace, at - 1);
  const char last = text_[before];
  if (at == scalar_end_ || last == '}' || last == ']') fail_wanting(at, "',' or '}'");
  fail_wanting(at, last == '"' ? "':'" : "a member's name in quotes");
}

void JsonParser::fail_at(size_t offset, std::string_view problem) const {
  throw Failure{offset, std::string(problem)};
}

void JsonParser::fail_wanting(size_t offset, std::string_view wanted) const {
  if (offset >= text_.size()) fail_at(text_.size(), fmt::format("the text ends, wanted {}", wanted));
  const std::string_view rest = text_.substr(offset);
  if (static_cast<unsigned char>(rest[0]) < 0x20) {
    fail_at(offset, fmt::format("found the control character 0x{:02x}, wanted {}", rest[0], wanted));
  }
  fail_at(offset, fmt::format("found '{}', wanted {}", rest.substr(0, decode_utf8(rest).length), wanted));
}

}  // namespace millrace
