#pragma once

#include <filesystem>
#include <memory>
#include <stop_token>
#include <string>

#include "base/result.h"
#include "model/range_source.h"

namespace millrace::app {

/// The model as a flag names it, and how a hub is asked for it.
struct ModelRef {
  std::string model;         ///< a folder, a GGUF file, or ORG/NAME[:REVISION] or ORG/NAME:GGUF of a hub
  std::string revision;      ///< of a hub; empty: the model's text says it, else main
  std::string download_dir;  ///< in place of the cache that the environment names; empty: that one
  std::string token;         ///< in place of HF_TOKEN; empty: that one
};

/// The parts of a model that this process downloads.
enum class WeightScope : uint8_t {
  kWhole,       ///< all weights, checked by their hashes
  kOwnTensors,  ///< the tensors that are read, when they are read: those of this node's stages
};

/// The folders with the files of a model, or its GGUF file in place of both.
struct ModelSource {
  std::string name;                            ///< for clients: the name of the folder or file, or ORG/NAME
  std::filesystem::path folder;                ///< config.json, tokenizer and templates
  std::filesystem::path weights_folder;        ///< usually the same
  std::shared_ptr<model::RangeSource> ranges;  ///< fills the files of weights_folder; null: they are complete
};

/// Finds a model in a folder or file, else in the cache or at the hub, which may download it with a progress bar. What
/// exists as a path is never looked up at a hub. `stop` ends this call, and later ones of `ranges`, with kAborted.
/// Errors name the flag, and what to do about it.
[[nodiscard]] Result<ModelSource> locate_model(const ModelRef& ref, WeightScope scope, const std::stop_token& stop);

/// Downloads a model to the cache and returns its folder there, or its first GGUF file, with a newline.
[[nodiscard]] Result<std::string> fetch_model(const ModelRef& ref);
/// Returns a table of the models in the cache.
[[nodiscard]] Result<std::string> list_models(const ModelRef& ref);

}  // namespace millrace::app
