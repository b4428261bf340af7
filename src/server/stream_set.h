#pragma once

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "async/task_group.h"
#include "async/wait_list.h"
#include "sched/head/engine.h"
#include "sched/plan/generate_event.h"

namespace millrace::server {

/// Merges the engine's streams of one HTTP request, so that one coroutine can wait for all of them. A task per stream
/// holds at most one event; later events are merged by the engine, so a slow client holds back only itself. Owned by
/// the ResponseTask, on its executor; `finish` must have been awaited before destruction.
class StreamSet {
 public:
  struct Arrival {
    size_t index = 0;
    sched::GenerateEvent event;
  };

  StreamSet(async::Runtime& runtime, sched::Engine& engine);

  /// Submits one more request to the engine; requests are numbered from 0. After an error `finish` still applies.
  [[nodiscard]] Result<void> submit(sched::GenerateRequest request);
  /// Returns the next event that has arrived; nothing when there is none, and wait() is to be awaited.
  [[nodiscard]] std::optional<Arrival> take();
  /// Returns after an arrival, or after wake(); the caller checks again what it waits for.
  [[nodiscard]] asio::awaitable<bool> wait() { return changed_.wait(); }
  void wake() { changed_.notify_all(); }
  /// Spawns a task that `finish` cancels and joins.
  void spawn(std::string name, asio::awaitable<void> task) { tasks_.spawn(std::move(name), std::move(task)); }
  /// Ends stream `index` early, by destroying it.
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
