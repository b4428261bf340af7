#pragma once

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "async/task_group.h"
#include "async/wait_list.h"
#include "sched/head/engine.h"

namespace millrace::server {

/// The engine's streams of one HTTP request, merged into one place to wait. Each stream is read by a task of its own
/// that holds at most one event; what comes meanwhile is merged by the engine, so a slow reader holds back only itself.
/// One executor. Before destruction `finish` must have been awaited.
class StreamSet {
 public:
  struct Arrival {
    size_t index = 0;
    sched::GenerateEvent event;
  };

  StreamSet(async::Runtime& runtime, sched::Engine& engine);

  /// Submits one more request; its index is the count of those before. On an error the set may still be finished.
  [[nodiscard]] Result<void> submit(sched::GenerateRequest request);
  /// An arrival, or nothing when none is there: then wait() is to be awaited.
  [[nodiscard]] std::optional<Arrival> take();
  /// Returns after an arrival, or after wake(). Re-check everything.
  [[nodiscard]] asio::awaitable<bool> wait() { return changed_.wait(); }
  void wake() { changed_.notify_all(); }
  /// Spawns a task that belongs to this request, to be cancelled and joined with it.
  void spawn(std::string name, asio::awaitable<void> task) { tasks_.spawn(std::move(name), std::move(task)); }
  /// Ends stream `index` early; the engine sees it destroyed.
  void drop(size_t index);
  /// Drops what is left and joins all tasks. Not cancellable: call with cancellation disabled.
  [[nodiscard]] asio::awaitable<void> finish();

 private:
  struct Slot {
    explicit Slot(async::Runtime& runtime) : taken(runtime) {}
    std::unique_ptr<sched::TokenStream> stream;
    std::optional<sched::GenerateEvent> event;
    bool dropped = false;
    async::WaitList taken;
  };
  asio::awaitable<void> pump(size_t index);

  async::Runtime& runtime_;
  sched::Engine& engine_;
  std::vector<std::unique_ptr<Slot>> slots_;
  std::vector<size_t> ready_;  ///< slots with an event, at most one entry each
  async::WaitList changed_;
  async::TaskGroup tasks_;
};

}  // namespace millrace::server
