#pragma once

#include <memory>

#include "base/check.h"
#include "base/utf8.h"
#include "text/tokenizer/tokenizer.h"

namespace millrace::fuzz {

/// Checks what must hold of a tokenizer, and of the refusal of one.
inline void check_tokenizer(const Result<std::shared_ptr<const text::Tokenizer>>& tokenizer) {
  if (tokenizer.has_error()) {
    CHECK(tokenizer.error().code == ErrorCode::kData && !tokenizer.error().message.empty());
    return;
  }
  const size_t vocab_size = (*tokenizer)->vocab_size();
  for (const std::string_view text : {"Hello, world! 123", "na\xC3\xAFve \xE9\xAF\xA8<s>\n\t  x", "\xFF\xFE", ""}) {
    const auto ids = (*tokenizer)->encode(text, true);
    for (const TokenId id : ids) CHECK(id >= 0 && static_cast<size_t>(id) < vocab_size);
    CHECK(is_valid_utf8((*tokenizer)->decode(ids, false)));
    CHECK(is_valid_utf8((*tokenizer)->decode(ids, true)));
  }
  for (const TokenId id : {-1, 0, 1, 1 << 30}) (void)(*tokenizer)->token_bytes(id);
}

}  // namespace millrace::fuzz
