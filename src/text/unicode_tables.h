// Made by tools/make_unicode_tables.py. Do not edit.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "text/code_point_set.h"

/// Private to src/text: character properties as Hugging Face's tokenizers has them.
namespace millrace::text::unicode_tables {

inline constexpr size_t kCategoryChanges = 4099;
inline constexpr size_t kScriptChanges = 1708;
inline constexpr size_t kScriptCount = 170;
inline constexpr size_t kScriptClassChanges = 1489;
inline constexpr size_t kLowercaseRuns = 185;
inline constexpr size_t kOtherAlphabeticCount = 250;
inline constexpr size_t kOtherUppercaseCount = 5;
inline constexpr size_t kOtherLowercaseCount = 28;
inline constexpr size_t kPunctuationChangeCount = 41;
inline constexpr size_t kControlChangeCount = 7;
inline constexpr size_t kNonspacingChangeCount = 106;
inline constexpr size_t kCombiningChangeCount = 88;

/// Maps the code points `first`, `first + stride`, up to `last` by adding `distance`.
struct CaseRun {
  char32_t first;
  char32_t last;
  uint8_t stride;
  int32_t distance;
};

/// Holds where the general category changes: the code point times 256, plus the index of the new category.
extern const std::array<uint32_t, kCategoryChanges> kCategories;
/// Holds where the script changes; 0 is no script, and n is kScriptNames[n - 1].
extern const std::array<uint32_t, kScriptChanges> kScripts;
extern const std::array<std::string_view, kScriptCount> kScriptNames;
/// Holds where the class of the UnicodeScripts pre-tokenizer changes; 0 joins any neighbour.
extern const std::array<uint32_t, kScriptClassChanges> kScriptClasses;
/// Holds what is alphabetic beyond L and Nl.
extern const std::array<CodePointRange, kOtherAlphabeticCount> kOtherAlphabetic;
/// Holds what is uppercase beyond Lu.
extern const std::array<CodePointRange, kOtherUppercaseCount> kOtherUppercase;
/// Holds what is lowercase beyond Ll.
extern const std::array<CodePointRange, kOtherLowercaseCount> kOtherLowercase;
/// Holds where the Punctuation pre-tokenizer differs from P and ASCII's symbols.
extern const std::array<CodePointRange, kPunctuationChangeCount> kPunctuationChange;
/// Holds where BertNormalizer's control characters differ from Cc, Cf and Co.
extern const std::array<CodePointRange, kControlChangeCount> kControlChange;
/// Holds where BertNormalizer's accents differ from Mn.
extern const std::array<CodePointRange, kNonspacingChangeCount> kNonspacingChange;
/// Holds where StripAccents differs from M.
extern const std::array<CodePointRange, kCombiningChangeCount> kCombiningChange;
/// Holds the lowercase mappings of single code points, but that of U+0130, which has two.
extern const std::array<CaseRun, kLowercaseRuns> kLowercase;

}  // namespace millrace::text::unicode_tables
