#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>

#include "base/enum_names.h"
#include "base/result.h"
#include "model/checkpoint.h"
#include "model/config.h"
#include "model/pooling_config.h"
#include "server/rerank_template.h"
#include "text/tokenizer/tokenizer.h"

namespace millrace::server {
struct PoolingModel;
}

namespace millrace::app {

/// What the ring computes: outputs (and vectors, if asked for), or vectors only.
enum class Runner : uint8_t { kGenerate, kPooling };
inline constexpr EnumName<Runner> kRunnerNames[] = {
    {Runner::kGenerate, "generate"},
    {Runner::kPooling, "pooling"},
};
constexpr std::span<const EnumName<Runner>> enum_names(Runner) {
  return kRunnerNames;
}

/// What becomes of pooled rows: vectors of texts, scores of pairs, or nothing.
enum class Conversion : uint8_t { kNone, kEmbed, kClassify };
inline constexpr EnumName<Conversion> kConversionNames[] = {
    {Conversion::kNone, "none"},
    {Conversion::kEmbed, "embed"},
    {Conversion::kClassify, "classify"},
};
constexpr std::span<const EnumName<Conversion>> enum_names(Conversion) {
  return kConversionNames;
}

/// The flags about vectors and scores. What is empty follows from the model's files.
struct PoolingOptions {
  std::optional<Runner> runner;
  std::optional<Conversion> conversion;
  std::optional<model::PoolingMode> mode;
  std::optional<server::RerankTemplate> rerank_template;
  bool is_matryoshka = false;  ///< vectors may be cut, whatever config.json says
};

/// What a server does with a model.
struct PoolingSetup {
  bool has_output_head = true;                          ///< the ring loads the output head, and generates
  std::shared_ptr<const server::PoolingModel> pooling;  ///< null: the server gives no vectors or scores
  int32_t max_sequence_length = 0;                      ///< tokens of a text, if the model's files bound them; else 0
};

/// Opens the weights of the model, which may be in another folder than its description.
using CheckpointOpener = std::function<Result<std::unique_ptr<model::Checkpoint>>()>;

/// Decides by the flags and the files in `folder` what the server does, and loads the layers after the pooling. Errors
/// name the flag or file. Without `open_weights` they are in `folder` too.
[[nodiscard]] Result<PoolingSetup> set_up_pooling(const PoolingOptions& options, const std::filesystem::path& folder,
                                                  const model::ModelConfig& config, const text::Tokenizer& tokenizer,
                                                  const CheckpointOpener& open_weights = {});

}  // namespace millrace::app
