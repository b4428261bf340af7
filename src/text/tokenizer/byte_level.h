#pragma once

#include <optional>
#include <string>
#include <string_view>

/// The byte-level alphabet: each byte is written as one printable character in a vocabulary.
/// Source: Radford et al. 2019 (GPT-2): printable bytes stand for themselves, the others for U+0100 onward, in order.
namespace millrace::text {

/// Returns the character for `byte`, in UTF-8.
[[nodiscard]] std::string_view byte_level_char(unsigned char byte);
/// Returns `bytes` with each byte written as its character.
[[nodiscard]] std::string byte_level_text(std::string_view bytes);
/// Returns the bytes that a token spells, or nothing if it has a character outside the alphabet.
[[nodiscard]] std::optional<std::string> byte_level_bytes(std::string_view token);

}  // namespace millrace::text
