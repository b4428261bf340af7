#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "sched/head/request_intake.h"
#include "sched/scheduler/scheduler.h"

namespace millrace::sched {

/// Time limits of requests; 0 means no limit.
struct RequestTimeouts {
  async::Duration queue{};     ///< from submission to the first plan
  async::Duration prefetch{};  ///< from submission to the end of the wait for a prefetch
  async::Duration run{};       ///< from the first plan to the end
  [[nodiscard]] bool any() const { return queue.count() > 0 || prefetch.count() > 0 || run.count() > 0; }
};

/// Delivers the outputs of sequences to the clients that submitted them, and knows how long each request has waited and
/// run. Owned by the head, on its thread; holds one entry per request from its submission to its last event.
class OutputDelivery {
 public:
  /// Makes a delivery. With `audit`, an event after the last one of its sequence is a CHECK failure.
  OutputDelivery(RequestIntake& intake, bool audit) : intake_(intake), audit_(audit) {}

  void add(const Submission& submission);
  /// Notes that a plan has a slice of this sequence, and reports its start where the request asks for that.
  void planned(SequenceId id, async::TimePoint now);
  /// Passes an event on to its client. The last event of a sequence removes its entry and frees the request's id.
  void deliver(SequenceUpdate update, async::TimePoint now);
  /// Ends these requests with `error`.
  void fail(const std::vector<SequenceId>& ids, const Error& error, async::TimePoint now);
  /// Ends these requests with FinishReason::kAbort.
  void abort(const std::vector<SequenceId>& ids, async::TimePoint now);

  /// Ends these requests with `error`, as ones that have not run.
  void give_back(const std::vector<SequenceId>& ids, const Error& error, async::TimePoint now);
  /// Returns the requests that no plan has had yet and that any ring may run, in order of their ids.
  [[nodiscard]] std::vector<SequenceId> movable() const;

  [[nodiscard]] size_t size() const { return clients_.size(); }
  [[nodiscard]] std::vector<SequenceId> ids() const;

  /// The sequences that are past a time limit, each list in order of ids.
  struct Expired {
    std::vector<SequenceId> queued;
    std::vector<SequenceId> prefetching;
    std::vector<SequenceId> running;
  };
  [[nodiscard]] Expired expired(const RequestTimeouts& timeouts, async::TimePoint now) const;

 private:
  struct Client {
    std::string request_id;
    EventMailbox events;
    async::TimePoint submitted;
    std::optional<async::TimePoint> planned = {};
    Timings timings = {};  // as of the first token, or of now as long as there is none
    bool has_token = false;
    bool reports_start = false;
    bool is_pinned = false;  // its request names the ring
  };

  RequestIntake& intake_;
  const bool audit_;
  std::unordered_map<SequenceId, Client> clients_;
};

}  // namespace millrace::sched
