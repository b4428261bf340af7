#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace millrace::gguf {

/// How a byte-level vocabulary's texts are cut into words before merges apply: what tokenizer.ggml.pre names.
struct PreTokenizer {
  std::vector<std::string_view> names;     ///< values of tokenizer.ggml.pre
  std::vector<std::string_view> patterns;  ///< regular expressions whose matches become words, applied in order
  bool uses_gpt2_pattern = false;          ///< the pieces are then cut as GPT-2's are
  bool ignores_merges = false;             ///< a word that is a token needs no merges
  bool adds_bos = false;                   ///< where tokenizer.ggml.add_bos_token is absent
  bool normalizes = false;                 ///< texts are normalized to NFC
};

/// Returns the pre-tokenizer of that name; null if it is not known.
[[nodiscard]] const PreTokenizer* find_pre_tokenizer(std::string_view name);
/// Returns all names.
[[nodiscard]] std::vector<std::string_view> pre_tokenizer_names();

}  // namespace millrace::gguf
