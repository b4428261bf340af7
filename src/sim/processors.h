#pragma once

#include <vector>

#include "async/wait_list.h"
#include "sched/scheduler/shared_machine.h"

namespace millrace::sim {

/// Simulates the processors of a machine that several stages share. Concurrent jobs progress at the rate of
/// sched::SharedMachine: more threads than processors slow all jobs down alike, and each is slowed by its neighbours.
/// The stages' Runtimes are threads of one VirtualWorld. Outlives its jobs.
class Processors {
 public:
  explicit Processors(const sched::SharedMachine& machine) : machine_(machine) {}
  Processors(const Processors&) = delete;
  Processors& operator=(const Processors&) = delete;

  /// Returns when `work` is done, which is the time that the caller needs alone; `prompt_share` of it is for prompt
  /// tokens.
  [[nodiscard]] asio::awaitable<void> compute(async::Runtime& runtime, async::Duration work, double prompt_share);

 private:
  struct Job {
    async::WaitList rate_changed;
    double left_ns = 0;
    double prompt_share = 0;
  };
  class Registration;

  [[nodiscard]] double rate(const Job& job) const;
  void settle(async::TimePoint now);
  void wake_others(const Job& changed);

  const sched::SharedMachine machine_;
  std::vector<Job*> jobs_;      // that compute now
  double prompt_shares_ = 0;    // their sum
  async::TimePoint settled_{};  // the time at which their left_ns holds
};

}  // namespace millrace::sim
