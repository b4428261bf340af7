#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "async/event.h"
#include "sched/steps/step_epochs.h"
#include "sched/steps/step_messages.h"

namespace millrace::sched {

class StepEpoch;

/// The common epochs in a process with one ring, whose step coordinator is in another process. Messages go through the
/// connection with that process while there is one; its loss ends the epoch. Outlives what attach() is given.
class RemoteStepGroup final : public StepEpochs {
 public:
  /// `ring`: the number of the ring of this process among `ring_count`.
  RemoteStepGroup(uint32_t ring, uint32_t ring_count, EndFn on_end)
      : ring_(ring), ring_count_(ring_count), on_end_(std::move(on_end)) {}

  [[nodiscard]] asio::awaitable<Membership> join(uint32_t ring, async::Runtime& runtime,
                                                 comm::RingExperts experts) override;
  void end(uint32_t ring, const std::string& reason) override;
  void end_epoch(uint64_t epoch, int32_t ring, const std::string& reason) override;
  void leave(uint32_t ring) override;
  void interrupt(uint32_t ring) override;

  /// Uses a connection from now on. `send` is thread-safe. `host`: where the coordinator's process is.
  void attach(std::string host, SendStepMessage send);
  /// Acts on a message of the coordinator. Throws ErrorException (kData) for one that cannot come now.
  void handle(StepMessage message);
  /// Ends the use of the connection, and the epoch for `reason`.
  void detach(const std::string& reason);

 private:
  void begin(EpochBegun begun);
  [[nodiscard]] std::shared_ptr<StepEpoch> epoch_with(uint64_t number);
  void send(const StepMessage& message);

  const uint32_t ring_;
  const uint32_t ring_count_;
  const EndFn on_end_;
  std::mutex mutex_;
  SendStepMessage send_;  // empty: not connected; guarded by mutex_, as all below
  std::string host_;
  std::optional<async::Event> joined_;    // while the ring waits
  comm::RingExperts experts_;             // of the ring that waits, as other hosts get it
  std::shared_ptr<StepEpoch> epoch_;      // that the ring is in
  std::vector<comm::RingExperts> rings_;  // of epoch_
  bool is_of_connection_ = false;         // epoch_ has begun on the present connection
  bool interrupted_ = false;
};

}  // namespace millrace::sched
