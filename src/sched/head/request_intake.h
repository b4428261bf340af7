#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>

#include "sched/head/control.h"
#include "sched/head/engine.h"
#include "sched/head/engine_status.h"

namespace millrace::sched {

/// The border between the clients' threads and the head's thread. It refuses requests while the head is not ready,
/// keeps request ids unique, and bounds the submissions that the head has not taken. It passes them on as Controls. The
/// head bounds the queue itself, since it knows which requests have to wait. Owned by the head; thread-safe, apart from
/// the functions marked for the head's thread. It outlives every TokenStream.
class RequestIntake {
 public:
  /// `max_untaken` submissions may be under way to the head. With `audit`, a stream CHECKs that no event follows its
  /// last one.
  RequestIntake(async::Runtime& head_runtime, size_t max_untaken, bool audit);

  /// Passes a request that the scheduler can run on to the head. Errors: kUnavailable (not ready, or closed),
  /// kExhausted (too many submissions under way), kConflict (the request id is in use).
  [[nodiscard]] Result<std::unique_ptr<TokenStream>> submit(GenerateRequest request, async::Runtime& client);
  /// Returns false when no request in flight has this id.
  [[nodiscard]] bool abort(const std::string& request_id);
  /// Sends a control to the head. Returns false after close().
  [[nodiscard]] bool push(Control control) const { return controls_.try_push(std::move(control)); }
  [[nodiscard]] EngineStatus status() const;
  /// Frees the request's id, unless another sequence has it by now.
  void forget(const std::string& request_id, SequenceId id);

  // These run on the head's thread.
  /// Waits for the next control; returns nothing once closed and drained.
  [[nodiscard]] asio::awaitable<std::optional<Control>> next() const { return controls_.receive(); }
  /// Counts one submission as taken: from now on the published status accounts for it.
  void submission_taken();
  /// Sets whether requests are accepted, and the reason why not.
  void set_ready(bool ready, const std::string& reason);
  /// Refuses requests for `reason` as long as it is not empty, even while ready.
  void set_stall(const std::string& reason);
  /// Replaces the counts of the status; readiness stays as set_ready() left it.
  void publish(EngineStatus counts);
  /// Accepts no further control.
  void close() const { controls_.close(); }

 private:
  class Stream;

  const size_t max_untaken_;
  const bool audit_;
  async::Mailbox<Control> controls_;
  std::atomic<uint64_t> next_sequence_{1};
  mutable std::mutex mutex_;
  EngineStatus status_;  // guarded by mutex_, as all below
  std::string stall_;
  std::unordered_map<std::string, SequenceId> by_id_;
  uint32_t untaken_submissions_ = 0;
};

}  // namespace millrace::sched
