#pragma once

#include <vector>

#include "async/wait_list.h"
#include "sched/scheduler/shared_machine.h"

namespace millrace::sim {

/// The processors of a machine that several stages compute on. Those who compute at the same time go on at the rate of
/// sched::SharedMachine: beyond as many threads as processors all are slowed down alike, and each by what its
/// neighbours do. For virtual time only: the stages' Runtimes are threads of one VirtualWorld. Outlives those who
/// compute.
class Processors {
 public:
  explicit Processors(const sched::SharedMachine& machine) : machine_(machine) {}
  Processors(const Processors&) = delete;
  Processors& operator=(const Processors&) = delete;

  /// Returns when `work`, the time that the caller needs when nobody disturbs it, is done; `prompt_share` of it is for
  /// prompt tokens.
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
  std::vector<Job*> jobs_;      // those that compute
  double prompt_shares_ = 0;    // their sum
  async::TimePoint settled_{};  // until when their left_ns counts
};

}  // namespace millrace::sim
