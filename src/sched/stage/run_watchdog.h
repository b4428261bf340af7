#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "comm/link.h"

namespace millrace::sched {

/// Notices a run that takes longer than the watchdog's time since its plan arrived. One timer serves all runs: when it
/// fires, it is armed again for the run of that moment. Owned by the stage loop, on its thread.
class RunWatchdog {
 public:
  struct Run {
    PlanId plan;
    async::TimePoint arrived;                     ///< the plan
    async::TimePoint begun;                       ///< the run
    std::shared_ptr<comm::Arrival> inputs_event;  ///< of activations that a device receives by itself; else null
  };
  /// `on_late` gets the message about a late run of `name`: "stage 2". With a `limit` of 0 nothing is late.
  RunWatchdog(async::Runtime& runtime, std::string name, async::Duration limit,
              std::function<void(const std::string&)> on_late)
      : runtime_(runtime), name_(std::move(name)), limit_(limit), on_late_(std::move(on_late)) {}
  RunWatchdog(const RunWatchdog&) = delete;
  RunWatchdog& operator=(const RunWatchdog&) = delete;
  ~RunWatchdog();

  void begin(Run run);
  void end() { run_.reset(); }

 private:
  void arm();
  void check();

  async::Runtime& runtime_;
  const std::string name_;
  const async::Duration limit_;
  const std::function<void(const std::string&)> on_late_;
  std::optional<Run> run_;
  std::optional<async::TimerId> timer_;
};

}  // namespace millrace::sched
