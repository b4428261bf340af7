#include "text/tokenizer/pretoken_scanner.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <vector>

#include "base/utf8.h"
#include "text/unicode_properties.h"

namespace millrace::text {
namespace {

enum CharClass : uint8_t { kOther, kLetter, kNumber, kSpace };

constexpr char32_t kCodePoints = 0x110000;
constexpr char32_t kBlock = 256;

/// The class of every code point, in two steps: most blocks are equal and stored once.
class ClassTable {
 public:
  static const ClassTable& instance() {
    static const ClassTable table;
    return table;
  }
  CharClass operator[](char32_t code_point) const {
    return static_cast<CharClass>(blocks_[block_of_[code_point / kBlock]][code_point % kBlock]);
  }

 private:
  ClassTable() {
    std::vector<uint8_t> classes(kCodePoints, kOther);
    mark(classes, "L", kLetter);
    mark(classes, "N", kNumber);
    mark(classes, "White_Space", kSpace);
    for (char32_t block = 0; block < kCodePoints / kBlock; ++block) {
      std::array<uint8_t, kBlock> content;
      std::copy_n(classes.begin() + block * kBlock, kBlock, content.begin());
      size_t at = 0;
      while (at < blocks_.size() && blocks_[at] != content) ++at;
      if (at == blocks_.size()) blocks_.push_back(content);
      block_of_[block] = static_cast<uint16_t>(at);
    }
  }

  static void mark(std::vector<uint8_t>& classes, std::string_view property, CharClass value) {
    const CodePointSet members = *property_set(property);
    for (const auto& [first, last] : members.ranges()) {
      std::fill(classes.begin() + first, classes.begin() + last + 1, value);
    }
  }

  std::array<uint16_t, kCodePoints / kBlock> block_of_{};
  std::vector<std::array<uint8_t, kBlock>> blocks_;
};

constexpr std::array<uint8_t, 128> kAsciiClasses = [] {
  std::array<uint8_t, 128> classes{};
  for (char c = 'a'; c <= 'z'; ++c) classes[static_cast<size_t>(c)] = classes[static_cast<size_t>(c - 32)] = kLetter;
  for (char c = '0'; c <= '9'; ++c) classes[static_cast<size_t>(c)] = kNumber;
  for (char c : {' ', '\t', '\n', '\v', '\f', '\r'}) classes[static_cast<size_t>(c)] = kSpace;
  return classes;
}();

struct Char {
  CharClass char_class;
  uint8_t length;
};

/// Returns the character at `at`, which is inside `text`. In valid UTF-8 its lead byte gives its length.
Char char_at(std::string_view text, size_t at) {
  const auto lead = static_cast<unsigned char>(text[at]);
  if (lead < 0x80) [[likely]]
    return {static_cast<CharClass>(kAsciiClasses[lead]), 1};
  const auto continuation = [&](size_t i) { return static_cast<char32_t>(text[at + i] & 0x3F); };
  char32_t code_point;
  uint8_t length;
  if (lead < 0xE0) {
    code_point = (char32_t{lead} & 0x1F) << 6 | continuation(1);
    length = 2;
  } else if (lead < 0xF0) {
    code_point = (char32_t{lead} & 0x0F) << 12 | continuation(1) << 6 | continuation(2);
    length = 3;
  } else {
    code_point = (char32_t{lead} & 0x07) << 18 | continuation(1) << 12 | continuation(2) << 6 | continuation(3);
    length = 4;
  }
  return {ClassTable::instance()[code_point], length};
}

bool is_newline(char c) {
  return c == '\n' || c == '\r';
}

/// Returns the end of the run of `wanted` from `at`, at most `max_chars` long.
size_t run_end(std::string_view text, size_t at, CharClass wanted, size_t max_chars = SIZE_MAX) {
  while (at < text.size() && max_chars > 0) {
    const Char c = char_at(text, at);
    if (c.char_class != wanted) break;
    at += c.length;
    --max_chars;
  }
  return at;
}

/// Returns the length of a contraction at the apostrophe `at`, or 0. With `any_case`, U+017F folds to s.
size_t contraction_length(std::string_view text, size_t at, bool any_case) {
  const auto letter = [&](size_t i) -> char {
    if (at + i >= text.size()) return 0;
    const char c = text[at + i];
    return any_case && c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c;
  };
  const char first = letter(1);
  if (first == 's' || first == 't' || first == 'm' || first == 'd') return 2;
  const char second = letter(2);
  if ((first == 'r' && second == 'e') || (first == 'v' && second == 'e') || (first == 'l' && second == 'l')) return 3;
  if (any_case && text.substr(at + 1).starts_with("\xC5\xBF")) return 3;
  return 0;
}

/// `\s+(?!\S)|\s+` for the run of spaces [begin, end): the last one is left to what follows.
size_t spaces_end(std::string_view text, size_t begin, size_t end, uint8_t first_length) {
  if (end == text.size()) return end;
  size_t last = end - 1;
  while ((static_cast<unsigned char>(text[last]) & 0xC0) == 0x80) --last;
  return last > begin ? last : begin + first_length;
}

}  // namespace

std::optional<PretokenScanner> PretokenScanner::for_pattern(std::string_view pattern) {
  if (pattern == kLlama3Pattern) return PretokenScanner(Kind::kLlama3, 3);
  if (pattern == kQwen2Pattern) return PretokenScanner(Kind::kLlama3, 1);
  if (pattern == kGpt2Pattern) return gpt2();
  return std::nullopt;
}

PretokenScanner PretokenScanner::gpt2() {
  return PretokenScanner(Kind::kGpt2, SIZE_MAX);
}

size_t PretokenScanner::next(std::string_view text, size_t begin) const {
  return kind_ == Kind::kLlama3 ? next_llama3(text, begin) : next_gpt2(text, begin);
}

size_t PretokenScanner::next_llama3(std::string_view text, size_t begin) const {
  const Char first = char_at(text, begin);
  const size_t second = begin + first.length;
  if (first.char_class == kLetter) return run_end(text, second, kLetter);
  if (first.char_class == kNumber) return run_end(text, begin, kNumber, max_digits_);
  const char byte = text[begin];
  if (byte == '\'') {
    if (const size_t length = contraction_length(text, begin, true)) return begin + length;
  }
  const CharClass second_class = second < text.size() ? char_at(text, second).char_class : kSpace;
  if (second_class == kLetter && !is_newline(byte)) return run_end(text, second, kLetter);
  if (first.char_class == kOther || (byte == ' ' && second_class == kOther)) {
    size_t end = run_end(text, second, kOther);
    while (end < text.size() && is_newline(text[end])) ++end;
    return end;
  }
  const size_t end = run_end(text, second, kSpace);
  for (size_t at = end; at > begin; --at) {
    if (is_newline(text[at - 1])) return at;
  }
  return spaces_end(text, begin, end, first.length);
}

size_t PretokenScanner::next_gpt2(std::string_view text, size_t begin) {
  const Char first = char_at(text, begin);
  const size_t second = begin + first.length;
  const char byte = text[begin];
  if (byte == '\'') {
    if (const size_t length = contraction_length(text, begin, false)) return begin + length;
  }
  if (first.char_class != kSpace) return run_end(text, second, first.char_class);
  if (byte == ' ' && second < text.size()) {
    const Char next = char_at(text, second);
    if (next.char_class != kSpace) return run_end(text, second + next.length, next.char_class);
  }
  return spaces_end(text, begin, run_end(text, second, kSpace), first.length);
}

}  // namespace millrace::text
