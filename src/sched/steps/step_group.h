#pragma once

#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "async/event.h"
#include "sched/steps/step_epochs.h"

namespace millrace::sched {

class StepEpoch;

/// The common epochs in the process whose rings have the step coordinator, which is a word in its memory. Each ring of
/// another process is a member through a StepServer.
class StepGroup final : public StepEpochs {
 public:
  /// Epochs are numbered after `last_epoch`.
  StepGroup(uint32_t ring_count, uint64_t lookahead, EndFn on_end = {}, uint64_t last_epoch = 0);

  [[nodiscard]] asio::awaitable<Membership> join(uint32_t ring, async::Runtime& runtime,
                                                 comm::RingExperts experts) override;
  void end(uint32_t ring, const std::string& reason) override;
  void end_epoch(uint64_t epoch, int32_t ring, const std::string& reason) override;
  void leave(uint32_t ring) override;
  void interrupt(uint32_t ring) override;
  /// Makes a join() of this ring that still waits throw. A later one waits again.
  void withdraw(uint32_t ring);

 private:
  struct Epoch;
  struct Ring {
    std::shared_ptr<Epoch> epoch;        // that it is in
    std::optional<async::Event> joined;  // while it waits
    comm::RingExperts experts;
    bool withdrawn = false;  // from the present wait
    bool interrupted = false;
  };
  void begin_if_complete();

  const uint64_t lookahead_;
  const EndFn on_end_;
  std::mutex mutex_;
  std::vector<Ring> rings_;  // guarded by mutex_, as the next
  std::shared_ptr<Epoch> newest_;
  uint64_t last_epoch_;
};

}  // namespace millrace::sched
