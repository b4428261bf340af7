#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "app/expert_sharing.h"
#include "app/local_engine.h"
#include "async/task_group.h"
#include "sched/router/ring_router.h"

namespace millrace::app {

/// The rings of this process (--dp-size): a LocalEngine each, and with several of them the router in front. serve()
/// builds one; start() blocks the thread that calls it. The destructor stops the rings and joins every thread.
class LocalRings {
 public:
  /// Makes the rings, which are not loaded yet, as LocalEngine::create() does.
  [[nodiscard]] static Result<std::unique_ptr<LocalRings>> create(const EngineOptions& options,
                                                                  const ClusterOptions& cluster_options,
                                                                  size_t vocab_size);
  ~LocalRings();
  LocalRings(const LocalRings&) = delete;
  LocalRings& operator=(const LocalRings&) = delete;

  /// Loads the weights of all rings, divides the memory among their caches and starts them, as LocalEngine::start().
  [[nodiscard]] Result<void> start();
  /// Ends loading, or a wait for other nodes. May be called from any thread.
  void interrupt();
  /// Returns the engine, which is not ready, with a reason, until a ring runs.
  [[nodiscard]] sched::Engine& engine();
  /// Appends the metrics of links, page stores, graphs and the control port. With several rings they have the label
  /// ring="i". Thread-safe.
  void append_metrics(std::string& out) const;
  /// Returns the nodes of each ring; none before they are known. Thread-safe.
  [[nodiscard]] std::vector<std::vector<cluster::NodeInfo>> nodes() const;

 private:
  LocalRings(std::unique_ptr<ExpertSharing> sharing, std::vector<std::unique_ptr<LocalEngine>> rings);
  void make_router(const EngineOptions& options);
  [[nodiscard]] Result<void> start_several();
  [[nodiscard]] std::vector<uint32_t> rings_per_device() const;
  void share_contents();

  std::unique_ptr<ExpertSharing> expert_sharing_;  // with --enable-ep
  std::vector<std::unique_ptr<LocalEngine>> rings_;
  std::unique_ptr<async::IoThread> router_thread_;  // with several rings, as the next two
  std::unique_ptr<async::TaskGroup> router_tasks_;
  std::unique_ptr<sched::RingRouter> router_;
};

}  // namespace millrace::app
