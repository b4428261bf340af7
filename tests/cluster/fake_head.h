#pragma once

#include <memory>
#include <string>

#include "async/real_runtime.h"
#include "cluster/coordinator.h"
#include "cluster/support.h"

namespace millrace::test {

/// A coordinator with a simulated stage of its own, which waits for links without end, and the thread of both. The ring
/// has kPages pages where all nodes have room for them.
class FakeHead final : public cluster::PoolHost {
 public:
  /// Nodes hear what to load at once, or when divide() is called.
  explicit FakeHead(bool divided = true);
  ~FakeHead() override;
  [[nodiscard]] async::Runtime& runtime() { return thread_.runtime(); }
  [[nodiscard]] cluster::Coordinator& coordinator() { return *coordinator_; }
  [[nodiscard]] const cluster::CoordinatorOptions& options() const { return options_; }
  /// What the start would say that it waits for.
  [[nodiscard]] const std::string& awaited() const { return awaited_; }
  /// The sizes of the pools that its stage got, after the first.
  [[nodiscard]] const std::vector<cache::PoolSizes>& made() const { return made_; }
  /// What keeps its stage from being made again; empty: nothing.
  void fail(std::string reason) { failure_ = std::move(reason); }
  [[nodiscard]] Result<cluster::Loaded> measure() override;
  [[nodiscard]] Result<sched::LocalStages*> stages(const cluster::Assignment& assignment, cache::PoolSizes pages,
                                                   const std::string& fingerprint) override;
  /// On the Runtime: two layers each.
  void divide() { coordinator_->set_layers({{0, 2}, {2, 4}}); }
  void run(asio::awaitable<void> scenario);

 private:
  static cluster::CoordinatorOptions make_options();

  const cluster::CoordinatorOptions options_ = make_options();
  async::IoThread thread_{"head"};
  async::TaskGroup tasks_{thread_.runtime()};
  std::unique_ptr<cluster::Coordinator> coordinator_;
  std::unique_ptr<sched::LocalStages> stages_;
  std::string awaited_;
  std::vector<cache::PoolSizes> made_;
  std::string failure_;
};

/// A stranger as yet.
[[nodiscard]] asio::awaitable<std::shared_ptr<cluster::ControlConnection>> connect_to(FakeHead& head);
/// Returns the hello of a node of rank 1 that fits.
[[nodiscard]] cluster::Hello hello_to(const FakeHead& head);
/// What the node of rank 1 says of itself.
[[nodiscard]] cluster::Loaded loaded_node(uint32_t pages = kPages, std::string stage = "weights");
/// A node of rank 1 that says hello and that it has loaded.
[[nodiscard]] asio::awaitable<std::shared_ptr<cluster::ControlConnection>> join_as_node(
    FakeHead& head, cluster::Loaded loaded = loaded_node());

}  // namespace millrace::test
