#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/enum_names.h"
#include "base/ids.h"
#include "base/result.h"

namespace millrace::model {

/// The rows of a prompt from which its vector is made.
enum class PoolingMode : uint8_t { kLast, kMean, kCls };

inline constexpr EnumName<PoolingMode> kPoolingModeNames[] = {
    {PoolingMode::kLast, "last"},
    {PoolingMode::kMean, "mean"},
    {PoolingMode::kCls, "cls"},
};
constexpr std::span<const EnumName<PoolingMode>> enum_names(PoolingMode) {
  return kPoolingModeNames;
}

/// A function of one number, after a dense layer or a score.
enum class Activation : uint8_t { kIdentity, kSigmoid, kTanh, kRelu, kGelu };

/// A dense layer after the pooling.
struct DenseConfig {
  std::filesystem::path folder;  ///< holds model.safetensors with linear.weight and linear.bias
  int32_t inputs = 0;
  int32_t outputs = 0;
  bool has_bias = true;
  Activation activation = Activation::kTanh;
};

/// The tokens whose logits after the last row make a score.
struct TokenScoreConfig {
  TokenId true_token = 0;
  std::optional<TokenId> false_token;  ///< its logit is subtracted
};

/// What modules.json and the files that it names say of the vector of a prompt.
struct PoolingConfig {
  bool has_modules = false;         ///< there is a modules.json
  std::optional<PoolingMode> mode;  ///< empty: the model's files do not say
  std::vector<DenseConfig> dense;
  std::optional<TokenScoreConfig> token_score;
  bool pools_prompts = true;        ///< false: the rows of a text's instruction are not pooled
  bool normalizes = true;           ///< the vector is divided by its length
  int32_t input_width = 0;          ///< length of the pooled vector; 0: not said
  int32_t max_sequence_length = 0;  ///< tokens of sentence_bert_config.json; 0: not said
};

/// What config.json says of a model that scores a pair of texts, or whose vectors may be cut.
struct ScoreConfig {
  Activation activation = Activation::kSigmoid;    ///< of a score
  std::vector<std::string> classifier_from_token;  ///< words whose logits make a score: no, then yes
  bool is_matryoshka = false;                      ///< a beginning of a vector is a vector too
  std::string own_code;                            ///< Python class that computes the model; empty: transformers' own
  std::vector<int32_t> matryoshka_dimensions;      ///< lengths that vectors may be cut to; empty: any
};

/// Parses the config.json of a Pooling module. Errors are kData and begin with `source`.
[[nodiscard]] Result<PoolingMode> parse_pooling_mode(std::string_view json, std::string_view source);
/// Parses the members of config.json that ScoreConfig holds. Errors are kData and begin with `source`.
[[nodiscard]] Result<ScoreConfig> parse_score_config(std::string_view json, std::string_view source);

/// Reads modules.json in a model's folder, or in that of its GGUF file, the files that it names, and
/// sentence_bert_config.json. Modules that are not computed here are refused by name. Errors: kData, and those of
/// read_file.
[[nodiscard]] Result<PoolingConfig> read_pooling_config(const std::filesystem::path& model_path);
/// Reads config.json in the same folder, which a GGUF file needs not, and the activation in
/// config_sentence_transformers.json, which goes before. Errors: those of parse_score_config and read_file.
[[nodiscard]] Result<ScoreConfig> read_score_config(const std::filesystem::path& model_path);

}  // namespace millrace::model
