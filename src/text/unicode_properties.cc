#include "text/unicode_properties.h"

#include <unicode/uchar.h>

#include <algorithm>
#include <array>
#include <string>

#include "text/unicode_tables.h"

namespace millrace::text {
namespace {

namespace tables = unicode_tables;

constexpr std::array<std::string_view, 30> kCategoryNames = {
    "lu", "ll", "lt", "lm", "lo", "mn", "mc", "me", "nd", "nl", "no", "pc", "pd", "ps", "pe",
    "pi", "pf", "po", "sm", "sc", "sk", "so", "zs", "zl", "zp", "cc", "cf", "co", "cs", "cn"};
constexpr std::array<std::pair<std::string_view, std::string_view>, 38> kLongCategoryNames = {{
    {"letter", "l"},
    {"casedletter", "lc"},
    {"uppercaseletter", "lu"},
    {"lowercaseletter", "ll"},
    {"titlecaseletter", "lt"},
    {"modifierletter", "lm"},
    {"otherletter", "lo"},
    {"mark", "m"},
    {"combiningmark", "m"},
    {"nonspacingmark", "mn"},
    {"spacingmark", "mc"},
    {"enclosingmark", "me"},
    {"number", "n"},
    {"decimalnumber", "nd"},
    {"letternumber", "nl"},
    {"othernumber", "no"},
    {"punctuation", "p"},
    {"connectorpunctuation", "pc"},
    {"dashpunctuation", "pd"},
    {"openpunctuation", "ps"},
    {"closepunctuation", "pe"},
    {"initialpunctuation", "pi"},
    {"finalpunctuation", "pf"},
    {"otherpunctuation", "po"},
    {"symbol", "s"},
    {"mathsymbol", "sm"},
    {"currencysymbol", "sc"},
    {"modifiersymbol", "sk"},
    {"othersymbol", "so"},
    {"separator", "z"},
    {"spaceseparator", "zs"},
    {"lineseparator", "zl"},
    {"paragraphseparator", "zp"},
    {"other", "c"},
    {"control", "cc"},
    {"format", "cf"},
    {"privateuse", "co"},
    {"unassigned", "cn"},
}};
constexpr std::string_view kAsciiSymbols = "$+<=>^`|~";
/// Characters that Oniguruma's own table of \w below U+0100 counts as words.
constexpr std::u32string_view kLatinNumbers = U"\u00B2\u00B3\u00B9\u00BC\u00BD\u00BE";

std::string folded(std::string_view name) {
  std::string out;
  for (const char c : name) {
    if (c != ' ' && c != '_' && c != '-') out += c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c;
  }
  return out;
}

/// Returns the code points whose value in a table of changes is `wanted`.
template <class Wanted>
CodePointSet select(std::span<const uint32_t> changes, Wanted wanted) {
  std::vector<CodePointRange> ranges;
  for (size_t i = 0; i < changes.size(); ++i) {
    if (!wanted(changes[i] & 0xFF)) continue;
    const char32_t end = i + 1 < changes.size() ? changes[i + 1] >> 8 : CodePointSet::kLast + 1;
    ranges.push_back({changes[i] >> 8, end - 1});
  }
  return CodePointSet::of(std::move(ranges));
}

uint32_t value_at(std::span<const uint32_t> changes, char32_t code_point) {
  const auto after = std::ranges::upper_bound(changes, code_point, {}, [](uint32_t change) { return change >> 8; });
  return *std::prev(after) & 0xFF;
}

template <size_t kCount>
CodePointSet set_of(const std::array<CodePointRange, kCount>& ranges) {
  return CodePointSet::of({ranges.begin(), ranges.end()});
}

CodePointSet set_of(std::u32string_view characters) {
  std::vector<CodePointRange> ranges;
  for (const char32_t c : characters) ranges.push_back({c, c});
  return CodePointSet::of(std::move(ranges));
}

/// Returns the characters whose category's name starts with `prefix`, which is in lower case.
CodePointSet categories(std::string_view prefix) {
  return select(tables::kCategories, [&](uint32_t value) { return kCategoryNames[value].starts_with(prefix); });
}

CodePointSet alphabetic() {
  return categories("l").with(categories("nl")).differing_from(set_of(tables::kOtherAlphabetic));
}

CodePointSet word() {
  return alphabetic().with(categories("m")).with(categories("nd")).with(categories("pc"));
}

CodePointSet white_space() {
  return categories("z").with(CodePointSet::of({{9, 13}, {0x85, 0x85}}));
}

CodePointSet graphic() {
  return white_space().with(categories("cc")).with(categories("cn")).complement();
}

std::optional<CodePointSet> category_set(std::string_view name) {
  for (const auto& [long_name, short_name] : kLongCategoryNames) {
    if (name == long_name) name = short_name;
  }
  if (name == "lc") return categories("lu").with(categories("ll")).with(categories("lt"));
  if (name.size() == 1 && std::string_view("lmnpszc").find(name) != std::string_view::npos) return categories(name);
  if (std::ranges::find(kCategoryNames, name) != kCategoryNames.end()) return categories(name);
  return std::nullopt;
}

std::optional<CodePointSet> class_set(std::string_view name) {
  if (name == "alpha" || name == "alphabetic") return alphabetic();
  if (name == "alnum") return alphabetic().with(categories("nd"));
  if (name == "any") return CodePointSet().complement();
  if (name == "ascii") return CodePointSet::of({{0, 127}});
  if (name == "assigned") return categories("cn").complement();
  if (name == "blank") return categories("zs").with(CodePointSet::of({{'\t', '\t'}}));
  if (name == "cntrl") return categories("cc");
  if (name == "digit") return categories("nd");
  if (name == "graph") return graphic();
  if (name == "lower" || name == "lowercase") return categories("ll").differing_from(set_of(tables::kOtherLowercase));
  if (name == "print") return graphic().with(categories("zs"));
  if (name == "punct") return categories("p").with(categories("s"));
  if (name == "space" || name == "whitespace") return white_space();
  if (name == "upper" || name == "uppercase") return categories("lu").differing_from(set_of(tables::kOtherUppercase));
  if (name == "word") return word().with(set_of(kLatinNumbers));
  if (name == "posixword") return word();
  if (name == "xdigit") return CodePointSet::of({{'0', '9'}, {'A', 'F'}, {'a', 'f'}});
  return std::nullopt;
}

std::optional<CodePointSet> script_set(const std::string& name) {
  for (size_t i = 0; i < tables::kScriptNames.size(); ++i) {
    if (folded(tables::kScriptNames[i]) == name) {
      return select(tables::kScripts, [&](uint32_t value) { return value == i + 1; });
    }
  }
  return std::nullopt;
}

/// Returns the long name of a script for its code of four letters, else nothing. Codes are the same in every version.
std::optional<std::string> script_of_code(const std::string& code) {
  constexpr size_t kCodeLength = 4;
  if (code.size() != kCodeLength) return std::nullopt;
  const int32_t script = u_getPropertyValueEnum(UCHAR_SCRIPT, code.c_str());
  const char* name = u_getPropertyValueName(UCHAR_SCRIPT, script, U_LONG_PROPERTY_NAME);
  if (script == UCHAR_INVALID_CODE || name == nullptr) return std::nullopt;
  return folded(name);
}

}  // namespace

std::optional<CodePointSet> property_set(std::string_view name) {
  const std::string wanted = folded(name);
  if (auto set = category_set(wanted)) return set;
  if (auto set = class_set(wanted)) return set;
  if (auto set = script_set(wanted)) return set;
  const auto script = script_of_code(wanted);
  return script ? script_set(*script) : std::nullopt;
}

const CodePointSet& rust_word_set() {
  static const CodePointSet set = word().with(CodePointSet::of({{0x200C, 0x200D}}));
  return set;
}

const CodePointSet& punctuation_set() {
  static const CodePointSet set = [] {
    std::u32string symbols(kAsciiSymbols.begin(), kAsciiSymbols.end());
    return categories("p").with(set_of(symbols)).differing_from(set_of(tables::kPunctuationChange));
  }();
  return set;
}

const CodePointSet& bert_control_set() {
  static const CodePointSet set =
      categories("cc").with(categories("cf")).with(categories("co")).differing_from(set_of(tables::kControlChange));
  return set;
}

const CodePointSet& bert_accent_set() {
  static const CodePointSet set = categories("mn").differing_from(set_of(tables::kNonspacingChange));
  return set;
}

const CodePointSet& combining_mark_set() {
  static const CodePointSet set = categories("m").differing_from(set_of(tables::kCombiningChange));
  return set;
}

uint32_t script_class(char32_t code_point) {
  return value_at(tables::kScriptClasses, code_point);
}

char32_t simple_lowercase(char32_t code_point) {
  const auto after = std::ranges::upper_bound(tables::kLowercase, code_point, {}, &tables::CaseRun::first);
  if (after == tables::kLowercase.begin()) return code_point;
  const tables::CaseRun& run = *std::prev(after);
  if (code_point > run.last || (code_point - run.first) % run.stride != 0) return code_point;
  return static_cast<char32_t>(static_cast<int32_t>(code_point) + run.distance);
}

}  // namespace millrace::text
