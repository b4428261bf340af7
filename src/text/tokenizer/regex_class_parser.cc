#include "text/tokenizer/regex_class_parser.h"

#include <unicode/uniset.h>

#include <algorithm>

#include "base/result.h"
#include "base/utf8.h"
#include "text/tokenizer/pcre_properties.h"
#include "text/unicode_properties.h"

namespace millrace::text {
namespace {

constexpr int kMaxNesting = 16;

/// Returns the set with the other cases of its characters.
CodePointSet close_over_case(const CodePointSet& set) {
  icu::UnicodeSet cased;
  for (const CodePointRange& range : set.ranges()) {
    cased.add(static_cast<UChar32>(range.first), static_cast<UChar32>(range.last));
  }
  cased.closeOver(USET_CASE_INSENSITIVE);
  std::vector<CodePointRange> ranges;
  for (int32_t i = 0; i < cased.getRangeCount(); ++i) {
    ranges.push_back({static_cast<char32_t>(cased.getRangeStart(i)), static_cast<char32_t>(cased.getRangeEnd(i))});
  }
  return CodePointSet::of(std::move(ranges));
}

/// Adds PCRE2's spellings of what `\w` consists of.
void add_word_items(RegexClassParser::Items& items) {
  for (const char* item : {"\\p{L}", "\\p{M}", "\\p{Nd}", "\\p{Nl}", "\\p{Pc}"}) items.emplace_back(item);
}

}  // namespace

/// One element of a bracket expression: a set, or a character that may begin a range.
struct RegexClassParser::Element {
  CodePointSet set;
  std::optional<char32_t> character;
};

void RegexClassParser::fail(std::string_view reason) const {
  throw ErrorException(make_error(ErrorCode::kData, "regex \"{}\": {}", pattern_.substr(0, 200), reason));
}

CodePointSet RegexClassParser::property(std::string_view name, Items& items) const {
  const bool negated = name.starts_with('^');
  if (negated) name.remove_prefix(1);
  const std::string as_script = "\\p{sc:" + std::string(name) + "}";
  const std::string plain = "\\p{" + std::string(name) + "}";
  // Without "sc:" PCRE2 adds the characters that a script shares with others.
  const CodePointSet* of_pcre = pcre_property_set(as_script);
  const std::string& item = of_pcre != nullptr ? as_script : plain;
  if (of_pcre == nullptr) of_pcre = pcre_property_set(plain);
  if (of_pcre != nullptr) items.push_back(item);
  std::optional<CodePointSet> set = property_set(name);
  if (!set && of_pcre != nullptr) set = *of_pcre;
  if (!set) fail("the property \"" + std::string(name) + "\" is not known");
  return negated ? set->complement() : *set;
}

std::optional<CodePointSet> RegexClassParser::escape(size_t& at, Items& items) const {
  if (pattern_.substr(at, 1) != "\\" || at + 1 >= pattern_.size()) return std::nullopt;
  const char letter = pattern_[at + 1];
  const bool negated = letter >= 'A' && letter <= 'Z';
  CodePointSet set;
  switch (negated ? static_cast<char>(letter + 32) : letter) {
    case 's': set = *property_set("space"); break;
    case 'd':
      set = *property_set("digit");
      items.emplace_back("\\p{Nd}");
      break;
    case 'w':
      set = *property_set("word");
      add_word_items(items);
      break;
    case 'h': set = *property_set("xdigit"); break;
    case 'p': {
      const size_t end = pattern_.find('}', at);
      if (pattern_.substr(at + 2, 1) != "{" || end == std::string_view::npos) return std::nullopt;
      set = property(pattern_.substr(at + 3, end - at - 3), items);
      at = end - 1;
      break;
    }
    default: return std::nullopt;
  }
  at += 2;
  return negated ? set.complement() : set;
}

std::optional<CodePointSet> RegexClassParser::posix(size_t& at, Items& items) const {
  if (!pattern_.substr(at).starts_with("[:")) return std::nullopt;
  const size_t end = pattern_.find(":]", at + 2);
  if (end == std::string_view::npos) return std::nullopt;
  std::string_view name = pattern_.substr(at + 2, end - at - 2);
  const bool negated = name.starts_with('^');
  if (negated) name.remove_prefix(1);
  const bool is_name = !name.empty() && std::ranges::all_of(name, [](char c) { return c >= 'a' && c <= 'z'; });
  std::optional<CodePointSet> set;
  // The POSIX class lacks what Oniguruma's \w adds below U+0100.
  if (is_name) set = property_set(name == "word" ? "posixword" : name);
  if (!set) return std::nullopt;
  if (name == "word" || name == "alpha" || name == "alnum") add_word_items(items);
  at = end + 2;
  return negated ? set->complement() : *set;
}

char32_t RegexClassParser::number(size_t& at, size_t max_digits, uint32_t base) const {
  char32_t value = 0;
  for (size_t digits = 0; digits < max_digits && at < pattern_.size(); ++digits, ++at) {
    const char c = pattern_[at];
    uint32_t digit = base;
    if (c >= '0' && c <= '9') digit = static_cast<uint32_t>(c - '0');
    if (c >= 'a' && c <= 'f') digit = static_cast<uint32_t>(c - 'a' + 10);
    if (c >= 'A' && c <= 'F') digit = static_cast<uint32_t>(c - 'A' + 10);
    if (digit >= base) break;
    value = value * base + digit;
  }
  if (value > CodePointSet::kLast) fail("a character number is above 10FFFF");
  return value;
}

char32_t RegexClassParser::escaped_character(size_t& at) const {
  const char letter = pattern_[at++];
  switch (letter) {
    case 'n': return '\n';
    case 't': return '\t';
    case 'r': return '\r';
    case 'f': return '\f';
    case 'v': return '\v';
    case 'a': return '\a';
    case 'b': return '\b';
    case 'e': return 0x1B;
    case 'u': return number(at, 4, 16);
    case 'x': {
      if (pattern_.substr(at, 1) != "{") return number(at, 2, 16);
      ++at;
      const char32_t value = number(at, 8, 16);
      if (pattern_.substr(at, 1) != "}") fail("\\x{ has no }");
      ++at;
      return value;
    }
    default: break;
  }
  --at;
  if (letter >= '0' && letter <= '7') return number(at, 3, 8);
  return character(at);
}

char32_t RegexClassParser::character(size_t& at) const {
  const DecodedUtf8 step = decode_utf8(pattern_.substr(at));
  if (!step.valid) fail("the pattern is not UTF-8");
  at += step.length;
  return step.code_point;
}

RegexClassParser::Element RegexClassParser::element(size_t& at, bool any_case, Items& items, int depth) const {
  if (auto set = posix(at, items)) return {*std::move(set), std::nullopt};
  if (pattern_[at] == '[') return {bracket(++at, any_case, items, depth + 1), std::nullopt};
  if (auto set = escape(at, items)) return {*std::move(set), std::nullopt};
  if (pattern_[at] != '\\') return {{}, character(at)};
  if (++at >= pattern_.size()) fail("a backslash is the last character");
  return {{}, escaped_character(at)};
}

CodePointSet RegexClassParser::bracket(size_t& at, bool any_case, Items& items, int depth) const {
  if (depth > kMaxNesting) fail("brackets are nested too deeply");
  const bool negated = pattern_.substr(at, 1) == "^";
  if (negated) ++at;
  std::optional<CodePointSet> before;  // what stands left of the last &&
  std::vector<CodePointRange> ranges;
  bool has_word = false;
  bool has_operands = false;
  const auto close_operand = [&] {
    CodePointSet operand = CodePointSet::of(std::exchange(ranges, {}));
    before = before ? before->common_with(operand) : std::move(operand);
  };
  const auto add = [&](const CodePointSet& set) {
    ranges.insert(ranges.end(), set.ranges().begin(), set.ranges().end());
    // A hostile pattern repeats large properties.
    if (ranges.size() > 100'000) ranges = CodePointSet::of(std::move(ranges)).ranges();
  };
  for (bool is_first = true;; is_first = false) {
    if (at >= pattern_.size()) fail("a bracket expression has no end");
    if (pattern_[at] == ']' && !is_first) break;
    if (pattern_.substr(at, 2) == "&&") {
      at += 2;
      close_operand();
      has_operands = true;
      continue;
    }
    has_word = has_word || pattern_.substr(at, 2) == "\\w";
    const Element first = element(at, any_case, items, depth);
    if (!first.character) {
      add(first.set);
      continue;
    }
    CodePointRange range = {*first.character, *first.character};
    const bool is_range = pattern_.substr(at, 1) == "-" && at + 1 < pattern_.size() && pattern_[at + 1] != ']';
    if (is_range && pattern_.substr(at + 1, 2) != "&&") {
      const Element last = element(++at, any_case, items, depth);
      if (last.character) {
        range.last = *last.character;
      } else {
        ranges.push_back({'-', '-'});
        add(last.set);
      }
      if (range.last < range.first) fail("a range of a bracket expression is empty");
    }
    ranges.push_back(range);
  }
  ++at;
  close_operand();
  // What Oniguruma adds to \w below U+0100 does not survive an intersection.
  if (has_word && has_operands) before = before->minus(property_set("word")->minus(*property_set("posixword")));
  CodePointSet set = any_case ? close_over_case(*before) : *std::move(before);
  return negated ? set.complement() : set;
}

}  // namespace millrace::text
