#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <string>

#include "app/engine_options.h"
#include "app/node_stages.h"
#include "cluster/stage_host.h"
#include "model/checkpoint.h"
#include "model/config.h"

namespace millrace::app {

/// Loads and keeps the stages of a node other than the head's, as its Member asks. Called on the Member's loader
/// thread. It keeps the weights from head to head, as long as assignments ask for the same ones.
class WorkerHost final : public cluster::StageHost {
 public:
  /// Borrows everything but `options`, all of which outlives the host. Loading ends once `interrupted` is true.
  WorkerHost(async::Runtime& control, const model::ModelConfig& config, const model::Checkpoint& checkpoint,
             const EngineOptions& options, const std::atomic<bool>& interrupted);

  [[nodiscard]] Result<cluster::Loaded> load(const cluster::Assignment& assignment) override;
  [[nodiscard]] Result<cluster::Loaded> measure() override;
  [[nodiscard]] Result<sched::LocalStages*> stages(const cluster::Assignment& assignment, cache::PoolSizes pages,
                                                   const std::string& fingerprint) override;
  /// Waits until the stages' threads have no work left.
  void join();

 private:
  /// What the loops around the weights have been made for.
  struct Purpose {
    cluster::Assignment assignment;
    cache::PoolSizes pages;
    std::string fingerprint;
    friend bool operator==(const Purpose&, const Purpose&) = default;
  };

  [[nodiscard]] Result<std::unique_ptr<NodeStages>> load_node(const cluster::Assignment& assignment);
  void destroy_loops();

  async::Runtime& control_;
  const model::ModelConfig& config_;
  const model::Checkpoint& checkpoint_;
  const NodeOptions node_options_;
  const std::optional<tensor::Isa> isa_;  // where the head does not say
  const std::atomic<bool>& interrupted_;
  std::unique_ptr<NodeStages> node_;
  std::optional<cluster::Assignment> loaded_;  // set with node_
  std::optional<Purpose> made_for_;
};

}  // namespace millrace::app
