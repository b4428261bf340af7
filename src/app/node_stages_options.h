#pragma once

#include <atomic>
#include <vector>

#include "app/devices.h"
#include "app/node_options.h"
#include "base/ids.h"
#include "base/result.h"
#include "model/stage_model.h"
#include "sched/stage/local_stages.h"
#include "sched/stage/stage_config.h"

namespace millrace::app {

/// What the stages of one node are loaded from.
struct NodeStagesOptions {
  std::vector<model::StageSpan> spans;  ///< of this node's stages
  StageId first;                        ///< index in the ring of the first of them
  sched::LocalStages::Ranks ranks;      ///< of each stage, on this node
  sched::StageConfig stage;
  NodeOptions node;
  DeviceKind device = DeviceKind::kCpu;            ///< NodeOptions::device, resolved
  int32_t context_length = 0;                      ///< tokens of the longest sequence
  const std::atomic<bool>* interrupted = nullptr;  ///< once it is true, loading ends between two tensors

  /// Throws ErrorException (kAborted) once `interrupted` is true.
  void check_interrupted() const {
    if (interrupted == nullptr || !*interrupted) return;
    throw ErrorException(Error{ErrorCode::kAborted, "loading was interrupted"});
  }
};

}  // namespace millrace::app
