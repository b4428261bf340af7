#include "base/json_parser.h"

#include <simdjson.h>
#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/utf8.h"

namespace millrace {
namespace {

constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";
constexpr size_t kLargestText = UINT32_MAX;
constexpr size_t kBytesPerNode = 8;  // of usual texts, at least
constexpr size_t kRoomBytes = size_t{64} << 10;

bool is_space(char c) {
  return c == ' ' || c == '\n' || c == '\r' || c == '\t';
}
bool is_digit(char c) {
  return c >= '0' && c <= '9';
}
bool is_letter(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

static_assert(std::endian::native == std::endian::little);
constexpr uint64_t kOnes = 0x0101010101010101;

/// The first byte of a string's text that is not just itself: a quote, a backslash, or a control character.
const char* find_special(const char* at, const char* end) {
#if defined(__SSE2__)
  for (; end - at >= 16; at += 16) {
    const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(at));
    const __m128i quotes = _mm_cmpeq_epi8(bytes, _mm_set1_epi8('"'));
    const __m128i backslashes = _mm_cmpeq_epi8(bytes, _mm_set1_epi8('\\'));
    const __m128i controls = _mm_cmpeq_epi8(_mm_max_epu8(bytes, _mm_set1_epi8(0x1F)), _mm_set1_epi8(0x1F));
    const __m128i found = _mm_or_si128(_mm_or_si128(quotes, backslashes), controls);
    const auto mask = static_cast<uint32_t>(_mm_movemask_epi8(found));
    if (mask != 0) return at + std::countr_zero(mask);
  }
#endif
  for (; end - at >= 8; at += 8) {
    uint64_t bytes = 0;
    std::memcpy(&bytes, at, 8);
    const uint64_t quotes = (bytes ^ (kOnes * '"')) - kOnes;
    const uint64_t backslashes = (bytes ^ (kOnes * '\\')) - kOnes;
    const uint64_t controls = bytes - kOnes * 0x20;
    // A borrow reaches only bytes behind a true one.
    const uint64_t found = (quotes | backslashes | controls) & ~bytes & (kOnes * 0x80);
    if (found != 0) return at + std::countr_zero(found) / 8;
  }
  while (at != end && *at != '"' && *at != '\\' && static_cast<unsigned char>(*at) >= 0x20) ++at;
  return at;
}

size_t first_invalid_utf8(std::string_view text) {
  size_t at = 0;
  while (at < text.size()) {
    const DecodedUtf8 step = decode_utf8(text.substr(at));
    if (!step.valid) break;
    at += step.length;
  }
  return at;
}

/// Copies bytes up to a backslash or to `to`, eight at a time, so that `out` has room for all of them.
void copy_plain(const char*& from, const char* to, char*& out) {
  for (; to - from >= 8; from += 8, out += 8) {
    uint64_t bytes = 0;
    std::memcpy(&bytes, from, 8);
    std::memcpy(out, &bytes, 8);
    const uint64_t backslashes = (bytes ^ (kOnes * '\\')) - kOnes;
    const uint64_t found = backslashes & ~bytes & (kOnes * 0x80);
    if (found == 0) continue;
    const int count = std::countr_zero(found) / 8;
    from += count;
    out += count;
    return;
  }
  while (from != to && *from != '\\') *out++ = *from++;
}

char* write_utf8(char* out, char32_t code_point) {
  if (code_point < 0x80) {
    *out = static_cast<char>(code_point);
    return out + 1;
  }
  std::string bytes;
  append_utf8(bytes, code_point);
  return std::copy(bytes.begin(), bytes.end(), out);
}

}  // namespace

JsonParser::JsonParser(std::string_view text, const JsonOptions& options, JsonDocument& document)
    : text_(text), options_(options), document_(document), at_(text.data()), end_(text.data() + text.size()) {}

void JsonParser::run() {
  if (text_.size() > kLargestText) fail_at(at_, "the text is larger than 4 GiB");
  if (text_.starts_with(kByteOrderMark)) at_ += kByteOrderMark.size();
  if (!simdjson::validate_utf8(text_.data(), text_.size())) {
    const size_t offset = first_invalid_utf8(text_);
    throw Failure{offset, fmt::format("byte 0x{:02x} is not valid UTF-8", static_cast<uint8_t>(text_[offset]))};
  }
  document_.nodes_.reserve(text_.size() / kBytesPerNode + 1);
  skip_space();
  while (!begin_value() || go_to_next_value()) {
  }
}

bool JsonParser::begin_value() {
  switch (next()) {
    case '{':
      open(JsonKind::kObject);
      if (next() == '}') {
        close();
        return true;
      }
      read_key();
      return false;
    case '[':
      open(JsonKind::kArray);
      if (next() == ']') {
        close();
        return true;
      }
      return false;
    case '"': read_string(); return true;
    case '-': read_number(); return true;
    default: break;
  }
  if (is_digit(next())) {
    read_number();
  } else {
    read_word();
  }
  return true;
}

bool JsonParser::go_to_next_value() {
  for (;;) {
    skip_space();
    if (depth_ == 0) {
      if (at_ != end_) fail_wanting("the end of the text");
      return false;
    }
    const bool in_object = is_in_object();
    if (next() == ',') {
      ++at_;
      skip_space();
      if (in_object) read_key();
      return true;
    }
    if (next() != (in_object ? '}' : ']')) fail_wanting(in_object ? "',' or '}'" : "',' or ']'");
    close();
  }
}

void JsonParser::open(JsonKind kind) {
  if (++depth_ > options_.max_depth) {
    fail_at(at_, fmt::format("it is nested more than {} deep", options_.max_depth));
  }
  ++at_;
  if (depth_ > 1) document_.nodes_[innermost_].size = count_ + 1;
  count_ = 0;
  document_.nodes_.push_back({.kind = kind, .size = 0, .span = innermost_});
  innermost_ = document_.nodes_.size() - 1;
  skip_space();
}

void JsonParser::close() {
  ++at_;
  --depth_;
  Node& node = document_.nodes_[innermost_];
  const size_t parent = node.span;
  node.span = document_.nodes_.size() - innermost_;
  node.size = count_;
  innermost_ = parent;
  count_ = document_.nodes_[parent].size;
}

void JsonParser::read_key() {
  if (next() != '"') fail_wanting("a member's name in quotes");
  read_string();
  --count_;  // the value counts as the member
  skip_space();
  if (next() != ':') fail_wanting("':'");
  ++at_;
  skip_space();
}

void JsonParser::read_string() {
  const char* const begin = at_ + 1;
  const char* at = begin;
  bool has_escapes = false;
  for (;;) {
    at = find_special(at, end_);
    if (at == end_) fail_at(end_, "the text ends within a string");
    if (*at == '"') break;
    if (*at != '\\') fail_at(at, fmt::format("the control character 0x{:02x} within a string", *at));
    has_escapes = true;
    at += end_ - at >= 2 ? 2 : 1;
  }
  at_ = at + 1;
  if (has_escapes) {
    decode(begin, at);
  } else {
    add(JsonKind::kString, static_cast<size_t>(at - begin), begin);
  }
}

void JsonParser::decode(const char* from, const char* to) {
  char* const begin = room_for(static_cast<size_t>(to - from));
  char* out = begin;
  while (from != to) {
    copy_plain(from, to, out);
    if (from != to) out = write_utf8(out, read_escape(from));
  }
  const auto size = static_cast<size_t>(out - begin);
  room_ += size;
  room_bytes_ -= size;
  add(JsonKind::kString, size, begin);
}

char32_t JsonParser::read_escape(const char*& at) const {
  const char* const begin = at;
  at += 2;
  switch (begin[1]) {
    case '"':
    case '\\':
    case '/': return static_cast<unsigned char>(begin[1]);
    case 'b': return '\b';
    case 'f': return '\f';
    case 'n': return '\n';
    case 'r': return '\r';
    case 't': return '\t';
    case 'u': break;
    default: fail_at(begin, "a backslash before a character that needs none");
  }
  const char32_t first = read_hex(at);
  if (first < 0xD800 || first > 0xDFFF) return first;
  if (first <= 0xDBFF && end_ - at >= 6 && at[0] == '\\' && at[1] == 'u') {
    at += 2;
    const char32_t second = read_hex(at);
    if (second >= 0xDC00 && second <= 0xDFFF) return 0x10000 + ((first - 0xD800) << 10) + (second - 0xDC00);
  }
  fail_at(begin, fmt::format("\\u{:04x} is half of a surrogate pair, and the other half is missing",
                             static_cast<uint32_t>(first)));
}

/// Four digits; a string's closing quote is none, so that they end before it.
char32_t JsonParser::read_hex(const char*& at) const {
  char32_t value = 0;
  for (int i = 0; i < 4; ++i) {
    const char c = *at;
    const bool is_upper = c >= 'A' && c <= 'F';
    const bool is_lower = c >= 'a' && c <= 'f';
    if (!is_digit(c) && !is_upper && !is_lower) fail_at(at, "wanted four hexadecimal digits behind \\u");
    const int digit = is_digit(c) ? c - '0' : (is_upper ? c - 'A' : c - 'a') + 10;
    value = value * 16 + static_cast<char32_t>(digit);
    ++at;
  }
  return value;
}

void JsonParser::read_number() {
  const char* const begin = at_;
  if (*at_ == '-') ++at_;
  if (options_.accepts_non_finite && next() == 'I') {
    read_word();
    return;
  }
  if (next() == '0') {
    ++at_;
    if (is_digit(next())) fail_at(begin, "a number begins with a needless 0");
  } else {
    read_digits();
  }
  if (next() == '.') {
    ++at_;
    read_digits();
  }
  if (next() == 'e' || next() == 'E') {
    ++at_;
    if (next() == '+' || next() == '-') ++at_;
    read_digits();
  }
  add(JsonKind::kNumber, static_cast<size_t>(at_ - begin), begin);
}

void JsonParser::read_digits() {
  if (!is_digit(next())) fail_wanting("a digit");
  const char* at = at_;
  while (at != end_ && is_digit(*at)) ++at;
  at_ = at;
}

/// Of a negative number its sign has been read.
void JsonParser::read_word() {
  const char* const begin = at_;
  while (is_letter(next())) ++at_;
  const std::string_view word(begin, static_cast<size_t>(at_ - begin));
  const bool is_negative = begin != text_.data() && begin[-1] == '-';
  if (is_negative && word == "Infinity") return add(JsonKind::kNumber, word.size() + 1, begin - 1);
  if (word == "null") return add(JsonKind::kNull, 0, nullptr);
  if (word == "true" || word == "false") return add(JsonKind::kBool, word == "true", nullptr);
  const bool is_number = word == "NaN" || word == "Infinity";
  if (is_number && options_.accepts_non_finite) return add(JsonKind::kNumber, word.size(), begin);
  if (word.empty()) fail_wanting("a value");
  fail_at(begin, fmt::format("found {}, wanted a value", word.substr(0, 32)));
}

void JsonParser::add(JsonKind kind, size_t size, const char* text) {
  ++count_;
  document_.nodes_.push_back({.kind = kind, .size = static_cast<uint32_t>(size), .text = text});
}

char* JsonParser::room_for(size_t bytes) {
  if (bytes > room_bytes_) {
    room_bytes_ = std::max(bytes, kRoomBytes);
    document_.decoded_.push_back(std::make_unique_for_overwrite<char[]>(room_bytes_));
    room_ = document_.decoded_.back().get();
  }
  return room_;
}

void JsonParser::skip_space() {
  constexpr uint64_t kBlanks = 0x2020202020202020;
  const char* at = at_;
  while (at != end_ && is_space(*at)) {
    ++at;
    // Indentation.
    for (uint64_t bytes = 0; end_ - at >= 8; at += 8) {
      std::memcpy(&bytes, at, 8);
      if (bytes != kBlanks) break;
    }
  }
  at_ = at;
}

void JsonParser::fail_at(const char* at, std::string problem) const {
  throw Failure{static_cast<size_t>(at - text_.data()), std::move(problem)};
}

void JsonParser::fail_wanting(std::string_view wanted) const {
  if (at_ == end_) fail_at(at_, fmt::format("the text ends, wanted {}", wanted));
  const std::string_view rest(at_, static_cast<size_t>(end_ - at_));
  if (static_cast<unsigned char>(*at_) < 0x20) {
    fail_at(at_, fmt::format("found the control character 0x{:02x}, wanted {}", *at_, wanted));
  }
  fail_at(at_, fmt::format("found '{}', wanted {}", rest.substr(0, decode_utf8(rest).length), wanted));
}

}  // namespace millrace
