#pragma once

#include <cstdint>
#include <string_view>

namespace millrace::gguf {

/// The kinds of tokens, by their numbers in files.
enum class TokenType : int64_t {
  kNormal = 1,
  kUnknown = 2,
  kControl = 3,
  kUserDefined = 4,
  kUnused = 5,
  kByte = 6,
};

/// The keys under which metadata has the tokenizer.
inline constexpr std::string_view kTokenizerPrefix = "tokenizer.ggml.";
inline constexpr std::string_view kTokensKey = "tokenizer.ggml.tokens";
inline constexpr std::string_view kTokenTypesKey = "tokenizer.ggml.token_type";

}  // namespace millrace::gguf
