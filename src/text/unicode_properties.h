#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "text/code_point_set.h"

/// Character properties in the versions of Unicode that Hugging Face's tokenizers 0.23 has. Their tables are our own,
/// since the system's libraries are of any version.
namespace millrace::text {

/// Returns the characters of a property of Oniguruma. It is a general category or a group of them, a script, a POSIX
/// class, or a binary property that tokenizers use. A script may have its code, such as Grek. Ignores case, blanks, `_`
/// and `-`. Nothing if the name is not known here.
[[nodiscard]] std::optional<CodePointSet> property_set(std::string_view name);

/// Returns what `\w` is in Rust's regular expressions: as in Oniguruma, and the two joiners.
[[nodiscard]] const CodePointSet& rust_word_set();
/// Returns what the Punctuation and BertPreTokenizer components split at.
[[nodiscard]] const CodePointSet& punctuation_set();
/// Returns what BertNormalizer removes as control characters.
[[nodiscard]] const CodePointSet& bert_control_set();
/// Returns what BertNormalizer removes as accents.
[[nodiscard]] const CodePointSet& bert_accent_set();
/// Returns what the StripAccents normalizer removes.
[[nodiscard]] const CodePointSet& combining_mark_set();

/// Returns the class of a character for the UnicodeScripts pre-tokenizer; 0 joins any neighbour.
[[nodiscard]] uint32_t script_class(char32_t code_point);
/// Returns the lowercase form as one code point; U+0130, which has two, gives the first of them.
[[nodiscard]] char32_t simple_lowercase(char32_t code_point);

}  // namespace millrace::text
