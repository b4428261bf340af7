#pragma once

#include <memory>
#include <string>

#include "async/real_runtime.h"
#include "cluster/coordinator.h"

namespace millrace::test {

/// A coordinator with a simulated stage of its own, which waits for links without end, and the thread of both.
class FakeHead {
 public:
  /// Nodes hear what to load at once, or when divide() is called.
  explicit FakeHead(bool divided = true);
  ~FakeHead();
  [[nodiscard]] async::Runtime& runtime() { return thread_.runtime(); }
  [[nodiscard]] cluster::Coordinator& coordinator() { return *coordinator_; }
  [[nodiscard]] const cluster::CoordinatorOptions& options() const { return options_; }
  /// What the start would say that it waits for.
  [[nodiscard]] const std::string& awaited() const { return awaited_; }
  void want_pages(uint32_t pages) { coordinator_->set_local(*stages_, {pages, 0}); }
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
};

/// A stranger as yet.
[[nodiscard]] asio::awaitable<std::shared_ptr<cluster::ControlConnection>> connect_to(FakeHead& head);
/// Returns the hello of a node of rank 1 that fits.
[[nodiscard]] cluster::Hello hello_to(const FakeHead& head);
/// A node of rank 1 that says hello and that it has loaded.
[[nodiscard]] asio::awaitable<std::shared_ptr<cluster::ControlConnection>> join_as_node(
    FakeHead& head, std::string compute = "bf16 cpu avx2", std::string stage = "weights");

}  // namespace millrace::test
