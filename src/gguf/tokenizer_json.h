#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "gguf/model.h"

namespace millrace::gguf {

/// Returns the text of each token that plain text can contain, by id; those of added tokens and padding are empty.
/// Errors: kData. Metadata without a vocabulary gives none.
[[nodiscard]] Result<std::vector<std::string_view>> vocabulary(const Model& model);

/// Returns a tokenizer.json that says what the metadata says: a byte-level BPE (tokenizer.ggml.model gpt2), or a BPE by
/// scores as SentencePiece's (llama). Errors: kData for another kind, a pre-tokenizer that is not known, or metadata
/// that contradicts itself. They name the file and the key.
[[nodiscard]] Result<std::string> tokenizer_json(const Model& model);

/// Returns a tokenizer_config.json with the special tokens and the chat templates. It has neither where the metadata
/// has none. Errors: kData.
[[nodiscard]] Result<std::string> tokenizer_config_json(const Model& model);

}  // namespace millrace::gguf
