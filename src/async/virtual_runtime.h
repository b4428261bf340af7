#pragma once

#include <boost/asio/execution.hpp>
#include <boost/asio/execution_context.hpp>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "async/runtime.h"

namespace millrace::async {

class VirtualThread;

/// Simulates threads under virtual time, all on the calling thread. Each thread is a queue of tasks in order, and a
/// seeded generator picks whose task runs next. Time moves to the next timer only when no thread has a task. One seed
/// gives one history, and the hash tells two histories apart. Owned by a test or a simulation.
class VirtualWorld {
 public:
  explicit VirtualWorld(uint64_t seed);
  /// Destroys the remaining tasks without running them, and the coroutines that still wait.
  ~VirtualWorld();

  /// Creates a thread and returns its Runtime, which the world owns.
  [[nodiscard]] Runtime& add_thread();
  /// Runs until no task and no timer is left, or until the next timer lies after `until`. Exceptions pass through.
  void run(TimePoint until = TimePoint::max());
  [[nodiscard]] TimePoint now() const { return now_; }
  [[nodiscard]] uint64_t step_count() const { return steps_; }
  [[nodiscard]] uint64_t trace_hash() const { return trace_hash_; }
  /// Returns the next number of the world's generator, the only source of chance in simulated parts.
  [[nodiscard]] uint64_t random();

 private:
  friend class VirtualThread;
  struct Timer {
    VirtualThread* thread;
    std::function<void()> callback;
  };
  using TimerKey = std::pair<TimePoint, uint64_t>;

  [[nodiscard]] bool step();
  [[nodiscard]] bool advance(TimePoint until);

  const uint64_t seed_;
  uint64_t draws_ = 0;
  uint64_t steps_ = 0;
  uint64_t trace_hash_ = 0;
  uint64_t next_timer_ = 1;
  TimePoint now_{};
  std::vector<std::unique_ptr<VirtualThread>> threads_;
  std::vector<VirtualThread*> runnable_;
  std::map<TimerKey, Timer> timers_;
  std::unordered_map<uint64_t, TimePoint> timer_deadlines_;
};

/// One simulated thread, which its users see as a Runtime.
class VirtualThread final : public Runtime, public asio::execution_context {
 public:
  struct Task {
    virtual ~Task() = default;
    virtual void run() = 0;
  };

  VirtualThread(VirtualWorld& world, size_t index) : world_(world), index_(index) {}
  ~VirtualThread() override;
  [[nodiscard]] TimePoint now() const override { return world_.now_; }
  [[nodiscard]] asio::any_io_executor executor() override;
  TimerId arm(TimePoint when, std::function<void()> callback) override;
  void disarm(TimerId timer) override;

  void enqueue(std::unique_ptr<Task> task);

 private:
  friend class VirtualWorld;
  VirtualWorld& world_;
  const size_t index_;
  std::deque<std::unique_ptr<Task>> queue_;
};

/// The executor of a VirtualThread, which never runs anything inline.
class VirtualExecutor {
 public:
  explicit VirtualExecutor(VirtualThread& thread) : thread_(&thread) {}
  [[nodiscard]] asio::execution_context& query(asio::execution::context_t) const noexcept { return *thread_; }
  [[nodiscard]] static constexpr asio::execution::blocking_t query(asio::execution::blocking_t) noexcept {
    return asio::execution::blocking_t::never;
  }
  [[nodiscard]] VirtualExecutor require(asio::execution::blocking_t::never_t) const noexcept { return *this; }
  friend bool operator==(const VirtualExecutor& a, const VirtualExecutor& b) noexcept = default;

  template <class Function>
  void execute(Function function) const {
    struct FunctionTask final : VirtualThread::Task {
      explicit FunctionTask(Function&& body) : function_(std::move(body)) {}
      void run() override { std::move(function_)(); }
      Function function_;
    };
    thread_->enqueue(std::make_unique<FunctionTask>(std::move(function)));
  }

 private:
  VirtualThread* thread_;
};

}  // namespace millrace::async
