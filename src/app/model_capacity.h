#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "model/cache_groups.h"
#include "model/config.h"
#include "model/layer_range.h"
#include "model/weight_memory.h"
#include "sim/device.h"

namespace millrace::app {

/// What the stages of a ring of described devices have room for, from a model's config.json alone. docs/simulation.md
/// is the contract. All bytes are those of one rank.
class ModelCapacity {
 public:
  struct Options {
    int32_t rank_count = 1;  ///< of each stage; model::check_ranks allows it
    uint32_t page_size = 64;
    double memory_fraction = 0.9;  ///< of what weights leave, for the KV cache
    tensor::KvDType kv_dtype = tensor::KvDType::kAuto;
  };
  /// Some sequences of one length.
  struct Load {
    uint32_t sequences = 1;
    uint32_t tokens = 0;  ///< of each
  };

  /// `config.quantization` is what serving asks for.
  ModelCapacity(const model::ModelConfig& config, const sim::Device& device, const Options& options);

  /// Returns the weights of a stage.
  [[nodiscard]] model::WeightMemory weights(model::StageSpan span) const;
  /// Returns the bytes that pages may take on a stage; negative: its weights do not fit.
  [[nodiscard]] double room(model::StageSpan span) const;
  /// Returns the bytes of the pages of one sequence on a stage.
  [[nodiscard]] double sequence_bytes(model::StageSpan span, uint32_t tokens) const;
  /// Returns the tokens that each of `sequences` sequences can have, up to the model's context; 0: not one page.
  [[nodiscard]] uint32_t max_tokens(const std::vector<model::LayerRange>& ranges, uint32_t sequences) const;
  /// Returns whether a ring holds the weights and such a load; without a load, the weights alone.
  [[nodiscard]] bool fits(const std::vector<model::LayerRange>& ranges, const std::optional<Load>& load) const;
  /// Returns the even division over the fewest stages that fits; nothing if none does.
  [[nodiscard]] std::optional<std::vector<model::LayerRange>> fewest_even(const std::optional<Load>& load) const;
  /// Returns the division by memory over the fewest stages that fits.
  [[nodiscard]] std::optional<std::vector<model::LayerRange>> fewest_by_memory(const Load& load) const;
  /// Returns the least seconds in which one sequence of few tokens gets its next one: the stages read their weights.
  [[nodiscard]] double token_seconds(const std::vector<model::LayerRange>& ranges) const;
  /// Returns the most prompt tokens per second, with GEMMs alone; 0 without the device's flops.
  [[nodiscard]] double prompt_tokens_per_second(const std::vector<model::LayerRange>& ranges) const;

 private:
  [[nodiscard]] double slowest_active(const std::vector<model::LayerRange>& ranges) const;

  const model::ModelConfig config_;
  const sim::Device device_;
  const Options options_;
  const model::CacheGroups groups_;
  model::WeightMemory stage_;                // what each stage has besides layers
  std::vector<model::WeightMemory> layers_;  // [layers]
  model::WeightMemory first_;                // what the first stage has besides layers
  model::WeightMemory last_;
  std::vector<double> cache_bytes_;  // [layers], of one token
};

}  // namespace millrace::app
