#pragma once

#include <memory>
#include <span>
#include <stop_token>
#include <vector>

#include "app/cluster_options.h"
#include "async/real_runtime.h"
#include "async/task_group.h"
#include "cluster/remote/ring_listener.h"

namespace millrace::app {

/// The rings of a front that run in other processes: an engine each, and the listener at which they join, on a thread
/// of their own. Owned by LocalRings. The engines outlive every use of them once the destructor has joined the thread.
class RemoteRings {
 public:
  /// Makes the engines of the rings from number `first` on. `like` is a ring of this process, which outlives them, as
  /// does `steps`: the steps of rings that share experts, or null.
  RemoteRings(const RingPlacement& placement, uint32_t first, uint32_t count, std::chrono::milliseconds silence_limit,
              const sched::Engine& like, sched::StepGroup* steps);
  ~RemoteRings();
  RemoteRings(const RemoteRings&) = delete;
  RemoteRings& operator=(const RemoteRings&) = delete;

  /// Listens for the rings. Errors name the address; kAborted: `stop` was requested.
  [[nodiscard]] Result<void> listen(const std::stop_token& stop);
  /// Lets rings join from now on that compute what these facts say. Called once.
  void serve(cluster::remote::RingFacts facts);
  [[nodiscard]] std::span<const std::unique_ptr<cluster::remote::RemoteEngine>> engines() const { return engines_; }

 private:
  const comm::TcpEndpoint address_;
  std::vector<std::unique_ptr<cluster::remote::RemoteEngine>> engines_;
  async::IoThread thread_{"rings"};
  async::TaskGroup tasks_{thread_.runtime()};
  std::unique_ptr<cluster::remote::RingListener> listener_;
};

}  // namespace millrace::app
