#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/ids.h"
#include "base/result.h"
#include "text/tekken_format.h"

namespace millrace::text {

struct TokenizerParts;

/// Text to token ids and back, as the files of a model define them. Immutable after load and shared by all
/// threads: const methods are thread-safe, each call borrowing its working memory from a pool inside.
class Tokenizer {
 public:
  /// Reads the first of tokenizer.json, tekken.json and tiktoken.model in `model_dir` and, if present,
  /// tokenizer_config.json. Errors: kNotFound, kData. A component of an unknown type is an error that names it.
  static Result<std::shared_ptr<const Tokenizer>> load(const std::filesystem::path& model_dir);
  /// Makes a tokenizer from the contents of the files. `config_json` may be empty.
  static Result<std::shared_ptr<const Tokenizer>> from_json(std::string_view tokenizer_json,
                                                            std::string_view config_json = {});
  static Result<std::shared_ptr<const Tokenizer>> from_tekken(std::string_view tekken_json,
                                                              std::string_view config_json = {});
  /// Requires the config of a family that is known, since a tiktoken.model does not say how texts are split.
  static Result<std::shared_ptr<const Tokenizer>> from_tiktoken(std::string_view tiktoken_model,
                                                                std::string_view config_json);
  ~Tokenizer();
  Tokenizer(const Tokenizer&) = delete;
  Tokenizer& operator=(const Tokenizer&) = delete;

  /// Takes any bytes: ill-formed UTF-8 counts as U+FFFD. `add_special_tokens` adds what the post-processor adds (BOS);
  /// without `parse_special`, special tokens spelt in the text are plain text.
  [[nodiscard]] std::vector<TokenId> encode(std::string_view text, bool add_special_tokens,
                                            bool parse_special = true) const;

  /// The tokens of two texts, as models take them that compare the two.
  struct PairEncoding {
    std::vector<TokenId> ids;
    std::vector<uint32_t> type_ids;  ///< of the same length: which text a token belongs to, as the model numbers them
  };
  /// Encodes two texts with what the post-processor puts around a pair. A post-processor without pairs gives both texts
  /// alone.
  [[nodiscard]] PairEncoding encode_pair(std::string_view first, std::string_view second, bool add_special_tokens,
                                         bool parse_special = true) const;

  /// Always valid UTF-8. Ids outside the vocabulary (padded rows of an embedding) give nothing. A text longer than
  /// `max_bytes` bytes ends soon after them.
  [[nodiscard]] std::string decode(std::span<const TokenId> ids, bool skip_special_tokens,
                                   size_t max_bytes = std::string::npos) const;

  /// How far a decode has come. The start of a text is spelt differently in some vocabularies. The bytes of <0xNN>
  /// tokens wait for the end of their run, since one byte that is not UTF-8 makes each byte of the run a U+FFFD.
  struct DecodeState {
    bool at_first_token = true;
    size_t stripped = 0;
    std::string byte_run;
    size_t foreign_bytes = 0;    ///< of byte_run, at its start: those of a prompt, which are no output
    bool space_pending = false;  ///< a blank that the end of the text would drop
  };
  /// Appends the bytes that one more token adds. They may be part of a character.
  void append_bytes(TokenId id, bool skip_special_tokens, DecodeState& state, std::string& out) const;
  /// Appends what earlier tokens mean now that `id` follows them, without the bytes of `id`.
  void settle_before(TokenId id, bool skip_special_tokens, DecodeState& state, std::string& out) const;
  /// Appends what is left at the end of a text.
  void finish_bytes(DecodeState& state, std::string& out) const;
  /// Returns whether `id` is one byte of a run, as <0xNN> is.
  [[nodiscard]] bool is_run_byte(TokenId id) const;

  /// Returns the token as the vocabulary spells it; empty outside the vocabulary.
  [[nodiscard]] std::string_view id_to_token(TokenId id) const;
  [[nodiscard]] std::optional<TokenId> token_to_id(std::string_view token) const;
  /// Returns the bytes that the token stands for inside a text.
  [[nodiscard]] std::string token_bytes(TokenId id) const;

  /// Returns one more than the largest id.
  [[nodiscard]] size_t vocab_size() const;
  /// Returns the special tokens that tokenizer_config.json or tekken.json names.
  [[nodiscard]] std::optional<TokenId> bos_id() const;
  [[nodiscard]] std::optional<TokenId> eos_id() const;
  [[nodiscard]] bool is_special(TokenId id) const;
  /// Returns whether the token is special or otherwise an added one.
  [[nodiscard]] bool is_added(TokenId id) const;
  /// Returns how Mistral's models write conversations, as a tekken.json says.
  [[nodiscard]] const std::optional<TekkenFormat>& tekken_format() const;

 private:
  struct Scratch;
  class ScratchPool;

  using Parse = TokenizerParts (*)(std::string_view vocabulary, std::string_view config_json);

  explicit Tokenizer(TokenizerParts parts);
  static Result<std::shared_ptr<const Tokenizer>> make(Parse parse, std::string_view vocabulary,
                                                       std::string_view config_json);
  void encode_text(std::string_view text, bool skip_special, Scratch& scratch, std::vector<TokenId>& out) const;
  void encode_valid(std::string_view text, bool skip_special, Scratch& scratch, std::vector<TokenId>& out) const;
  void encode_word(std::string_view word, const char* readable_end, Scratch& scratch, std::vector<TokenId>& out) const;
  void encode_gap(std::string_view gap, bool at_text_start, bool skip_special, Scratch& scratch,
                  std::vector<TokenId>& out) const;

  std::unique_ptr<const TokenizerParts> parts_;
  std::unique_ptr<ScratchPool> scratches_;
};

}  // namespace millrace::text
