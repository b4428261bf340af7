#pragma once

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <map>
#include <optional>
#include <string>
#include <thread>
#include <unordered_map>

#include "async/runtime.h"

namespace millrace::async {

/// A Runtime over an io_context that one thread runs: the steady clock, and one shared timer for all deadlines.
class RealRuntime final : public Runtime {
 public:
  explicit RealRuntime(asio::io_context& context) : context_(context), timer_(context) {}
  [[nodiscard]] TimePoint now() const override;
  [[nodiscard]] asio::any_io_executor executor() override { return context_.get_executor(); }
  TimerId arm(TimePoint when, std::function<void()> callback) override;
  void disarm(TimerId timer) override;

 private:
  using Deadlines = std::multimap<TimePoint, std::pair<TimerId, std::function<void()>>>;
  void schedule();
  void fire();

  asio::io_context& context_;
  asio::steady_timer timer_;
  Deadlines deadlines_;
  std::unordered_map<TimerId, Deadlines::iterator> by_id_;
  std::optional<TimePoint> scheduled_;
  uint64_t next_id_ = 1;
};

/// A thread with an io_context and its Runtime, which takes over its creator's log label. The thread lives until
/// release() and the end of all work on it. The destructor releases and joins, so the owners of tasks here must have
/// ended them.
class IoThread {
 public:
  explicit IoThread(std::string name);
  ~IoThread();
  [[nodiscard]] Runtime& runtime() { return runtime_; }
  [[nodiscard]] asio::io_context& context() { return context_; }
  void join();

 private:
  asio::io_context context_{1};
  RealRuntime runtime_{context_};
  asio::executor_work_guard<asio::io_context::executor_type> work_{context_.get_executor()};
  std::thread thread_;
};

}  // namespace millrace::async
