#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/ids.h"
#include "base/json_value.h"
#include "base/result.h"
#include "text/tokenizer/added_tokens.h"
#include "text/tokenizer/bpe.h"
#include "text/tokenizer/normalizer.h"
#include "text/tokenizer/pre_tokenizer.h"
#include "text/tokenizer/token_decoder.h"

/// Private to src/text: what a tokenizer.json is made of, and the functions that read it.
namespace millrace::text {

struct TokenizerParts {
  Normalizer normalizer;
  PreTokenizer pre_tokenizer;
  bool byte_level = false;  ///< the pre-tokenizer ends in ByteLevel
  std::unique_ptr<const Bpe> bpe;
  AddedTokenMatcher raw_added;         ///< sought before normalisation
  AddedTokenMatcher normalized_added;  ///< sought after it
  TokenDecoder decoder;
  std::vector<TokenId> prefix;  ///< what the post-processor puts before a text
  std::vector<TokenId> suffix;
  std::vector<std::string> tokens;  ///< by id, as the vocabulary spells them
  std::vector<bool> is_special;
  TokenMap ids;  ///< the model's vocabulary and the added tokens
  std::optional<TokenId> bos;
  std::optional<TokenId> eos;
};

/// Each throws ErrorException (kData) with a message that names the component. `config_json` may be empty.
[[nodiscard]] TokenizerParts parse_tokenizer(std::string_view tokenizer_json, std::string_view config_json);
[[nodiscard]] Normalizer parse_normalizer(JsonValue json);
/// Fills pre_tokenizer and byte_level.
void parse_pre_tokenizer(JsonValue json, TokenizerParts& parts);
[[nodiscard]] std::vector<TokenDecoder::Step> parse_decoder(JsonValue json);
/// Fills prefix and suffix; needs ids.
void parse_post_processor(JsonValue json, TokenizerParts& parts);

/// Reading optional members. A member that is absent or null gives `fallback`; one of another kind throws.
[[nodiscard]] bool bool_member(JsonValue json, std::string_view name, bool fallback);
[[nodiscard]] std::string_view string_member(JsonValue json, std::string_view name, std::string_view fallback);
/// The member, or nothing if `json` is no object, or the member is absent or null.
[[nodiscard]] std::optional<JsonValue> member(JsonValue json, std::string_view name);
[[nodiscard]] JsonArray array_member(JsonValue json, std::string_view name);
/// A component's "type".
[[nodiscard]] std::string_view type_of(JsonValue json, std::string_view component);

template <class... Args>
[[noreturn]] void fail_data(fmt::format_string<Args...> format, Args&&... args) {
  throw ErrorException(Error{ErrorCode::kData, "tokenizer.json: " + fmt::format(format, std::forward<Args>(args)...)});
}

}  // namespace millrace::text
