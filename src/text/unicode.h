#pragma once

#include <string>
#include <string_view>

/// Unicode properties and mappings over UTF-8, through ICU.
namespace millrace::text {

enum class NormalForm { kNfc, kNfd, kNfkc, kNfkd };

/// Returns the White_Space property, as Rust's `char::is_whitespace` and Oniguruma's `\s` use it.
[[nodiscard]] bool is_white_space(char32_t code_point);
/// Returns what Python's `str.isspace` does: White_Space and the four information separators U+001C to U+001F.
[[nodiscard]] bool is_python_space(char32_t code_point);
/// Returns whether regex engines count it as `\w`: Alphabetic, marks, decimal digits, connector punctuation.
[[nodiscard]] bool is_word(char32_t code_point);
/// Returns whether Python's repr() prints the character unescaped.
[[nodiscard]] bool is_printable(char32_t code_point);
[[nodiscard]] bool is_alphabetic(char32_t code_point);  // general category L*, as Python's str.isalpha
[[nodiscard]] bool is_cased(char32_t code_point);
[[nodiscard]] bool is_lower(char32_t code_point);
[[nodiscard]] bool is_upper(char32_t code_point);

/// Requires valid UTF-8, as do the functions below. Takes n log n time, whatever the text. Characters newer than
/// Unicode 9 stay as they are, as in Hugging Face's tokenizers.
[[nodiscard]] std::string normalize(std::string_view text, NormalForm form);
/// Maps each code point by itself, as Rust's `char::to_lowercase` does (no final sigma).
[[nodiscard]] std::string lowercase_each(std::string_view text);
[[nodiscard]] std::string to_lower(std::string_view text);
[[nodiscard]] std::string to_upper(std::string_view text);
/// Returns the text with each run of letters in title case first and lower case after.
[[nodiscard]] std::string to_title(std::string_view text);

/// Returns the byte offset at which the last code point of the non-empty `text` starts.
[[nodiscard]] size_t last_code_point(std::string_view text);
[[nodiscard]] size_t count_code_points(std::string_view text);
/// Returns the byte offset of code point `index`, or text.size() if there are fewer.
[[nodiscard]] size_t code_point_offset(std::string_view text, size_t index);

}  // namespace millrace::text
