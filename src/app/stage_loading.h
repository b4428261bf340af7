#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "model/stage_model.h"
#include "tensor/backend.h"
#include "tensor/collective.h"

namespace millrace::app {

/// One rank of a stage whose weights are to be loaded.
struct StageToLoad {
  std::string name;  ///< in errors: "stage 2"
  model::StageSpan span;
  tensor::RankPosition position;
  std::optional<tensor::RankPosition> experts;  ///< model::LoadOptions::experts
  tensor::Backend* backend = nullptr;           ///< outlives what is loaded
  std::vector<int> processors;                  ///< on which it is loaded, so that its memory is near them; empty: any
};

/// How the stages of a node are loaded.
struct StageLoadingOptions {
  std::string what;  ///< in progress lines: "stages 0 to 3"
  model::StageLimits limits;
  int32_t threads = 0;                      ///< of each rank, to round weights to 8 bits; 0: one per CPU
  bool with_fingerprint = false;            ///< computes the fingerprint of the weights
  std::function<void()> check_interrupted;  ///< called between two tensors, by every thread; throws to end
};

/// Loads the ranks of a node's stages in parallel, a thread each, and shows their common progress. The first error,
/// which names the tensor, ends all: kExhausted when memory is short, kAborted when interrupted.
[[nodiscard]] Result<std::vector<std::unique_ptr<model::StageModel>>> load_stages(
    const model::Checkpoint& checkpoint, const model::ModelConfig& config, const std::vector<StageToLoad>& stages,
    const StageLoadingOptions& options);

}  // namespace millrace::app
