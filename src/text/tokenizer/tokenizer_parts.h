#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/ids.h"
#include "base/json_value.h"
#include "base/result.h"
#include "text/tekken_format.h"
#include "text/tokenizer/added_tokens.h"
#include "text/tokenizer/bpe.h"
#include "text/tokenizer/normalizer.h"
#include "text/tokenizer/post_processor.h"
#include "text/tokenizer/pre_tokenizer.h"
#include "text/tokenizer/token_decoder.h"
#include "text/tokenizer/unigram.h"
#include "text/tokenizer/word_piece.h"

/// Private to src/text: what a tokenizer is made of, and the functions that read the files of one.
namespace millrace::text {

/// How deep a component may stand in Sequences.
inline constexpr int kMaxComponentNesting = 8;

using TokenModel = std::variant<Bpe, Unigram, WordPiece>;

struct TokenizerParts {
  /// Several times the largest vocabulary; a file with larger ids is broken or hostile.
  static constexpr TokenId kMaxTokenId = (TokenId{1} << 23) - 1;

  Normalizer normalizer;
  PreTokenizer pre_tokenizer;
  bool byte_level = false;  ///< the pre-tokenizer ends in ByteLevel, whose alphabet is left to the model
  std::unique_ptr<const TokenModel> model;
  AddedTokenMatcher raw_added;         ///< sought before normalisation
  AddedTokenMatcher normalized_added;  ///< sought after it
  TokenDecoder decoder;
  PostProcessor post_processor;
  std::vector<std::string> tokens;  ///< by id, as the vocabulary spells them
  std::vector<TokenKind> kinds;     ///< by id
  TokenMap ids;                     ///< the model's vocabulary and the added tokens
  std::optional<TokenId> bos;
  std::optional<TokenId> eos;
  std::optional<TekkenFormat> tekken;  ///< of a tekken.json
};

/// Each reads a vocabulary file; `config_json` is the tokenizer_config.json, which may be empty. Each throws
/// ErrorException (kData) with a message that names the file and the component.
[[nodiscard]] TokenizerParts parse_tokenizer(std::string_view tokenizer_json, std::string_view config_json);
[[nodiscard]] TokenizerParts parse_tiktoken(std::string_view tiktoken_model, std::string_view config_json);
[[nodiscard]] TokenizerParts parse_tekken(std::string_view tekken_json, std::string_view config_json);

/// A vocabulary whose tokens are bytes and whose merges follow from their order, whatever file it comes from.
struct RankedVocabulary {
  std::vector<std::string> tokens;  ///< the bytes of each, by rank
  TokenId first_id = 0;             ///< of rank 0
  std::string_view pattern;         ///< splits texts into words
  std::vector<AddedToken> added;
};
/// Throws ErrorException (kData) for tokens that are no vocabulary. The result lacks post-processor, bos and eos.
[[nodiscard]] TokenizerParts build_ranked(const RankedVocabulary& vocabulary);

/// The functions below throw ErrorException (kData) with a message that names the component.
[[nodiscard]] Normalizer parse_normalizer(JsonValue json);
/// Returns the stage that cuts a text at the matches of `pattern`.
[[nodiscard]] PreTokenizer::Split regex_split(std::string_view pattern, SplitBehavior behavior, bool invert = false);
/// Fills pre_tokenizer and byte_level.
void parse_pre_tokenizer(JsonValue json, TokenizerParts& parts);
[[nodiscard]] std::vector<TokenDecoder::Step> parse_decoder(JsonValue json);
/// Needs ids.
[[nodiscard]] PostProcessor parse_post_processor(JsonValue json, const TokenizerParts& parts);
/// Fills the vocabulary and the model; needs the pre-tokenizer.
void parse_model(JsonValue model, TokenizerParts& parts);
/// Enters a token into tokens, kinds and ids.
void register_token(TokenizerParts& parts, TokenId id, std::string_view text, TokenKind kind);
/// Returns the id in `json`, which `what` has. Throws if it is none.
[[nodiscard]] TokenId checked_id(JsonValue json, std::string_view what);

inline constexpr std::string_view kConfigName = "tokenizer_config.json";
/// A tokenizer_config.json; without one there is no root.
struct ConfigDocument {
  JsonDocument document;
  std::optional<JsonValue> root;
};
[[nodiscard]] ConfigDocument parse_config(std::string_view config_json);
/// Parses the text of the file `name`. Throws if it is no JSON object.
[[nodiscard]] JsonDocument parse_document(std::string_view json, std::string_view name);
/// Returns the entries of the config's added_tokens_decoder.
[[nodiscard]] std::vector<AddedToken> parse_added_tokens_decoder(std::optional<JsonValue> config);
/// Returns the token that the config names: "bos_token" and the like.
[[nodiscard]] std::optional<TokenId> config_token(std::optional<JsonValue> config, std::string_view name,
                                                  const TokenizerParts& parts);

/// A "pattern" of a component: the regular expression, and the text if it is one.
struct ParsedPattern {
  Regex regex;
  std::string literal;
};
/// Reads {"String": s} or {"Regex": r}.
[[nodiscard]] ParsedPattern parse_pattern(JsonValue json, std::string_view component);
[[nodiscard]] PreTokenizer::Metaspace parse_metaspace(JsonValue json);

/// Reading optional members. A member that is absent or null gives `fallback`; one of another kind throws.
[[nodiscard]] bool bool_member(JsonValue json, std::string_view name, bool fallback);
[[nodiscard]] std::string_view string_member(JsonValue json, std::string_view name, std::string_view fallback);
/// Returns the member, or nothing if `json` is no object, or the member is absent or null.
[[nodiscard]] std::optional<JsonValue> member(JsonValue json, std::string_view name);
[[nodiscard]] JsonArray array_member(JsonValue json, std::string_view name);
/// Returns a component's "type".
[[nodiscard]] std::string_view type_of(JsonValue json, std::string_view component);

template <class... Args>
[[noreturn]] void fail_data(fmt::format_string<Args...> format, Args&&... args) {
  throw ErrorException(Error{ErrorCode::kData, fmt::format(format, std::forward<Args>(args)...)});
}

/// Calls `read`, and names `file` in its errors.
template <class Read>
auto in_file(std::string_view file, Read read) {
  try {
    return read();
  } catch (const ErrorException& failure) {
    throw ErrorException(make_error(failure.error().code, "{}: {}", file, failure.error().message));
  }
}

}  // namespace millrace::text
