#pragma once

#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <vector>

#include "app/divided_sharing.h"
#include "app/local_engine.h"
#include "app/remote_rings.h"
#include "async/task_group.h"
#include "sched/router/ring_router.h"

namespace millrace::app {

/// The rings of a front (--dp-size): a LocalEngine for each of this process, RemoteRings for the others, and with
/// several of them the router in front. serve() builds one; start() blocks the thread that calls it. The destructor
/// stops the rings of this process and joins every thread.
class LocalRings {
 public:
  /// Makes the rings, which are not loaded yet, as LocalEngine::create() does. `vocabulary` identifies the tokenizer
  /// to rings in other processes.
  [[nodiscard]] static Result<std::unique_ptr<LocalRings>> create(const EngineOptions& options,
                                                                  const ClusterOptions& cluster_options,
                                                                  size_t vocab_size,
                                                                  model::Fingerprint vocabulary = {});
  ~LocalRings();
  LocalRings(const LocalRings&) = delete;
  LocalRings& operator=(const LocalRings&) = delete;

  /// Loads the weights of this process's rings, divides the memory among their caches and starts them, as
  /// LocalEngine::start(). Rings of other processes may join from then on.
  [[nodiscard]] Result<void> start();
  /// Ends loading, or a wait for other nodes. May be called from any thread.
  void interrupt();
  /// Returns the engine, which is not ready, with a reason, until a ring runs.
  [[nodiscard]] sched::Engine& engine();
  /// Appends the metrics of links, page stores, graphs and the control port. With several rings they have the label
  /// ring="i". Thread-safe.
  void append_metrics(std::string& out) const;
  /// Returns what must be equal for another ring to give the same outputs, once started.
  [[nodiscard]] cluster::remote::RingFacts facts() const;
  /// Returns the common epochs of a ring whose experts are shared with those of a front; null for others.
  [[nodiscard]] sched::RemoteStepGroup* ring_steps();
  /// Notes that the rings are destroyed soon: if one breaks before, with another, that is no fault.
  void expect_stop();
  /// Returns the nodes of each ring; none before they are known. Thread-safe.
  [[nodiscard]] std::vector<std::vector<cluster::NodeInfo>> nodes() const;

 private:
  LocalRings() = default;
  [[nodiscard]] Result<void> share_experts(const EngineOptions& options, const RingPlacement& placement, int32_t local);
  void make_router(const EngineOptions& options);
  [[nodiscard]] Result<void> start_local();
  [[nodiscard]] size_t ring_count() const { return rings_.size() + (remote_ ? remote_->engines().size() : 0); }
  [[nodiscard]] std::vector<uint32_t> rings_per_device() const;
  void share_contents();

  std::unique_ptr<ExpertSharing> expert_sharing_;  // with --enable-ep
  DividedSharing* divided_sharing_ = nullptr;      // expert_sharing_, where some of the rings are elsewhere
  std::vector<std::unique_ptr<LocalEngine>> rings_;
  model::Fingerprint vocabulary_;
  std::stop_source interruption_;                   // ends the lookup of the address at which rings join
  std::unique_ptr<RemoteRings> remote_;             // null: all rings are here
  std::unique_ptr<async::IoThread> router_thread_;  // with several rings, as the next two
  std::unique_ptr<async::TaskGroup> router_tasks_;
  std::unique_ptr<sched::RingRouter> router_;
};

}  // namespace millrace::app
