#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "server/openai/choice_delta.h"

namespace millrace::server {

/// Returns the count of special tokens that the tokenizer added before the text of a prompt.
[[nodiscard]] size_t count_added_start(const text::Tokenizer& tokenizer, const std::vector<TokenId>& ids);

/// Returns, for each token of an echoed prompt, the code points of `prompt.text` that precede it. A special token that
/// the text does not spell has the offset of the token after it.
[[nodiscard]] std::vector<uint32_t> prompt_offsets(const ChoiceOptions& options, const TokenizedPrompt& prompt);

}  // namespace millrace::server
