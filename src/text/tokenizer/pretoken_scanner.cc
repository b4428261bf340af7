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
/// What patterns that know case ask of a character. Letters without case, and marks, are both upper and lower.
enum CasedFlag : uint8_t { kUpper = 1, kLower = 2, kIsLetter = 4, kIsNumber = 8, kIsSpace = 16, kHan = 32 };

constexpr char32_t kCodePoints = 0x110000;
constexpr char32_t kBlock = 256;

/// The class of every code point, in two steps: most blocks are equal and stored once.
class ClassTable {
 public:
  static const ClassTable& instance() {
    static const ClassTable table({{"L", kLetter}, {"N", kNumber}, {"White_Space", kSpace}}, false);
    return table;
  }
  /// Returns the table of CasedFlags. With `splits_han`, Han characters are neither upper nor lower.
  static const ClassTable& cased(bool splits_han) {
    static const Properties kFlags = {{"Lu", kUpper | kIsLetter},
                                      {"Lt", kUpper | kIsLetter},
                                      {"Ll", kLower | kIsLetter},
                                      {"Lm", kUpper | kLower | kIsLetter},
                                      {"Lo", kUpper | kLower | kIsLetter},
                                      {"M", kUpper | kLower},
                                      {"N", kIsNumber},
                                      {"White_Space", kIsSpace}};
    static const ClassTable plain(kFlags, false);
    static const ClassTable without_han(kFlags, true);
    return splits_han ? without_han : plain;
  }
  uint8_t operator[](char32_t code_point) const { return blocks_[block_of_[code_point / kBlock]][code_point % kBlock]; }

 private:
  using Properties = std::vector<std::pair<std::string_view, uint8_t>>;

  ClassTable(const Properties& properties, bool splits_han) {
    std::vector<uint8_t> classes(kCodePoints, 0);
    for (const auto& [property, value] : properties) mark(classes, property, value);
    if (splits_han) {
      const CodePointSet han = *property_set("Han");
      for (const auto& [first, last] : han.ranges()) {
        for (char32_t c = first; c <= last; ++c) classes[c] = (classes[c] & ~(kUpper | kLower)) | kHan;
      }
    }
    for (char32_t block = 0; block < kCodePoints / kBlock; ++block) {
      std::array<uint8_t, kBlock> content;
      std::copy_n(classes.begin() + block * kBlock, kBlock, content.begin());
      size_t at = 0;
      while (at < blocks_.size() && blocks_[at] != content) ++at;
      if (at == blocks_.size()) blocks_.push_back(content);
      block_of_[block] = static_cast<uint16_t>(at);
    }
  }

  static void mark(std::vector<uint8_t>& classes, std::string_view property, uint8_t value) {
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

constexpr std::array<uint8_t, 128> kAsciiFlags = [] {
  std::array<uint8_t, 128> flags{};
  for (size_t c = 0; c < flags.size(); ++c) {
    const bool is_capital = c >= 'A' && c <= 'Z';
    if (kAsciiClasses[c] == kLetter) flags[c] = kIsLetter | (is_capital ? kUpper : kLower);
    if (kAsciiClasses[c] == kNumber) flags[c] = kIsNumber;
    if (kAsciiClasses[c] == kSpace) flags[c] = kIsSpace;
  }
  return flags;
}();

struct Char {
  uint8_t char_class;  ///< a CharClass, or CasedFlags
  uint8_t length;
};

/// Returns the character at `at`, which is inside `text`. In valid UTF-8 its lead byte gives its length.
Char char_at(std::string_view text, size_t at, const std::array<uint8_t, 128>& ascii = kAsciiClasses,
             const ClassTable& table = ClassTable::instance()) {
  const auto lead = static_cast<unsigned char>(text[at]);
  if (lead < 0x80) [[likely]]
    return {ascii[lead], 1};
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
  return {table[code_point], length};
}

bool is_newline(char c) {
  return c == '\n' || c == '\r';
}

/// Returns the end of the run of `wanted` from `at`, at most `max_chars` long.
size_t run_end(std::string_view text, size_t at, uint8_t wanted, size_t max_chars = SIZE_MAX) {
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

/// A text with the CasedFlags of its characters.
struct CasedText {
  std::string_view text;
  const ClassTable& table;

  [[nodiscard]] Char at(size_t place) const { return char_at(text, place, kAsciiFlags, table); }
  /// Returns the end of the run of characters with any of `wanted` from `begin`.
  [[nodiscard]] size_t run_end(size_t begin, uint8_t wanted) const {
    while (begin < text.size()) {
      const Char c = at(begin);
      if ((c.char_class & wanted) == 0) break;
      begin += c.length;
    }
    return begin;
  }
  /// Returns the end of `[upper]*[lower]+` at `begin`, or 0. Without a lower character after the run of upper ones,
  /// the regex gives characters back up to the last that is both.
  [[nodiscard]] size_t word_end(size_t begin) const {
    size_t after_both = 0;
    while (begin < text.size()) {
      const Char c = at(begin);
      if ((c.char_class & kUpper) == 0) return (c.char_class & kLower) != 0 ? run_end(begin, kLower) : after_both;
      begin += c.length;
      if ((c.char_class & kLower) != 0) after_both = begin;
    }
    return after_both;
  }
  /// Returns the end of `[upper]+` at `begin`, or 0.
  [[nodiscard]] size_t capitals_end(size_t begin) const {
    const size_t end = run_end(begin, kUpper);
    return end > begin ? end : 0;
  }
};

/// Returns the end of `\s*[\r\n]+|\s+(?!\S)|\s+` for the run of spaces [begin, end).
size_t lines_or_spaces_end(std::string_view text, size_t begin, size_t end, uint8_t first_length) {
  for (size_t at = end; at > begin; --at) {
    if (is_newline(text[at - 1])) return at;
  }
  return spaces_end(text, begin, end, first_length);
}

}  // namespace

std::optional<PretokenScanner> PretokenScanner::for_pattern(std::string_view pattern) {
  if (pattern == kLlama3Pattern) return PretokenScanner(Kind::kLlama3, 3);
  if (pattern == kQwen2Pattern) return PretokenScanner(Kind::kLlama3, 1);
  if (pattern == kGpt2Pattern) return gpt2();
  if (pattern == kTekkenPattern) {
    return PretokenScanner(
        Cased{.max_digits = 1, .has_contractions = false, .joins_slashes = true, .splits_han = false});
  }
  if (pattern == kGpt4oPattern) {
    return PretokenScanner(
        Cased{.max_digits = 3, .has_contractions = true, .joins_slashes = true, .splits_han = false});
  }
  // Some files write the first alternative without brackets.
  const bool is_kimi =
      pattern == kKimiPattern || (pattern.starts_with(R"(\p{Han}+|)") && kKimiPattern.ends_with(pattern.substr(8)) &&
                                  kKimiPattern.size() - pattern.size() == 2);
  if (is_kimi) {
    return PretokenScanner(
        Cased{.max_digits = 3, .has_contractions = true, .joins_slashes = false, .splits_han = true});
  }
  return std::nullopt;
}

PretokenScanner PretokenScanner::gpt2() {
  return PretokenScanner(Kind::kGpt2, SIZE_MAX);
}

size_t PretokenScanner::next(std::string_view text, size_t begin) const {
  if (kind_ == Kind::kLlama3) return next_llama3(text, begin);
  return kind_ == Kind::kCased ? next_cased(text, begin) : next_gpt2(text, begin);
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
  const uint8_t second_class = second < text.size() ? char_at(text, second).char_class : kSpace;
  if (second_class == kLetter && !is_newline(byte)) return run_end(text, second, kLetter);
  if (first.char_class == kOther || (byte == ' ' && second_class == kOther)) {
    size_t end = run_end(text, second, kOther);
    while (end < text.size() && is_newline(text[end])) ++end;
    return end;
  }
  return lines_or_spaces_end(text, begin, run_end(text, second, kSpace), first.length);
}

size_t PretokenScanner::next_cased(std::string_view text, size_t begin) const {
  const CasedText cased{text, ClassTable::cased(cased_.splits_han)};
  const Char first = cased.at(begin);
  const size_t second = begin + first.length;
  const uint8_t flags = first.char_class;
  const char byte = text[begin];
  if ((flags & kHan) != 0) return cased.run_end(second, kHan);
  // One character that is no letter, number or line feed may stand before a word.
  const bool may_lead = (flags & (kIsLetter | kIsNumber)) == 0 && !is_newline(byte);
  size_t end = may_lead ? cased.word_end(second) : 0;
  if (end == 0) end = cased.word_end(begin);
  if (end == 0 && may_lead) end = cased.capitals_end(second);
  if (end == 0) end = cased.capitals_end(begin);
  if (end != 0) {
    const bool has_apostrophe = cased_.has_contractions && end < text.size() && text[end] == '\'';
    return has_apostrophe ? end + contraction_length(text, end, true) : end;
  }
  if ((flags & kIsNumber) != 0) {
    end = second;
    for (size_t digits = 1; digits < max_digits_ && end < text.size(); ++digits) {
      const Char c = cased.at(end);
      if ((c.char_class & kIsNumber) == 0) break;
      end += c.length;
    }
    return end;
  }
  const auto is_other = [&](size_t at) {
    return at < text.size() && (cased.at(at).char_class & (kIsLetter | kIsNumber | kIsSpace)) == 0;
  };
  if (is_other(begin) || (byte == ' ' && is_other(second))) {
    end = second;
    while (is_other(end)) end += cased.at(end).length;
    while (end < text.size() && (is_newline(text[end]) || (cased_.joins_slashes && text[end] == '/'))) ++end;
    return end;
  }
  return lines_or_spaces_end(text, begin, cased.run_end(second, kIsSpace), first.length);
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
