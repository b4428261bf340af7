#pragma once

#include <cstdint>
#include <vector>

#include "async/wait_list.h"

namespace millrace::sim {

/// Processors that the stages of one machine compute on. As long as no more threads want to run than there are
/// processors each runs at full speed; beyond that all are slowed down alike (processor sharing). For virtual time
/// only: the stages' Runtimes are threads of one VirtualWorld. Outlives those who compute.
class Processors {
 public:
  explicit Processors(uint32_t count) : count_(count) {}
  Processors(const Processors&) = delete;
  Processors& operator=(const Processors&) = delete;

  /// Returns when `work`, the time that the caller's `threads` threads need when nobody disturbs them, is done.
  [[nodiscard]] asio::awaitable<void> compute(async::Runtime& runtime, async::Duration work, uint32_t threads);

 private:
  struct Job {
    async::WaitList rate_changed;
    double left_ns = 0;
    uint32_t threads = 1;
  };
  class Registration;

  [[nodiscard]] double rate() const;
  void settle(async::TimePoint now);
  void wake_others(const Job& changed);

  const uint32_t count_;
  std::vector<Job*> jobs_;      // those that compute
  async::TimePoint settled_{};  // until when their left_ns counts
};

}  // namespace millrace::sim
