#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "model/stage_model.h"
#include "tensor/backend.h"

namespace millrace::app {

struct StageToLoad {
  std::string name;  ///< in errors: "stage 2"
  model::StageSpan span;
  tensor::Backend* backend = nullptr;  ///< outlives what is loaded
};

struct StageLoadingOptions {
  std::string what;  ///< all of them, for people: "stages 0 to 3"
  model::StageLimits limits;
  int32_t threads = 0;                      ///< per stage, that round weights to 8 bits; 0: one per CPU
  bool with_fingerprint = false;            ///< as LoadOptions
  std::function<void()> check_interrupted;  ///< called between two tensors, by every thread; what it throws ends all
};

/// Loads the stages of a node side by side, a thread each, and shows how far they are together. The first error ends
/// all: it names the tensor; kExhausted when memory is short, kAborted when interrupted.
[[nodiscard]] Result<std::vector<std::unique_ptr<model::StageModel>>> load_stages(
    const model::Checkpoint& checkpoint, const model::ModelConfig& config, const std::vector<StageToLoad>& stages,
    const StageLoadingOptions& options);

}  // namespace millrace::app
