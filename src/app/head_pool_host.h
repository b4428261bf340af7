#pragma once

#include <functional>
#include <string>

#include "app/node_stages.h"
#include "cluster/stage_host.h"

namespace millrace::app {

/// Makes the stages of the head's node again when the pools of a ring over several nodes change. Called on the
/// Coordinator's loader thread. Owned by LocalEngine; the stages' weights and the control Runtime outlive it.
class HeadPoolHost final : public cluster::PoolHost {
 public:
  /// `on_change` gets the stages that have been made, and null before those that exist are destroyed.
  HeadPoolHost(NodeStages& node, async::Runtime& control, const model::ModelConfig& config,
               const sched::StageConfig& stage, std::function<void(sched::LocalStages*)> on_change)
      : node_(node), control_(control), config_(config), stage_(stage), on_change_(std::move(on_change)) {}

  [[nodiscard]] Result<cluster::Loaded> measure() override;
  [[nodiscard]] Result<sched::LocalStages*> stages(const cluster::Assignment& assignment, cache::PoolSizes pages,
                                                   const std::string& fingerprint) override;

 private:
  NodeStages& node_;
  async::Runtime& control_;
  const model::ModelConfig& config_;
  const sched::StageConfig stage_;
  const std::function<void(sched::LocalStages*)> on_change_;
};

}  // namespace millrace::app
