#pragma once

#include <string>
#include <variant>

#include "async/mailbox.h"
#include "sched/plan/generate_event.h"
#include "sched/plan/pause_mode.h"
#include "sched/plan/request.h"

/// The messages that other threads send to the head's thread; plain data.
namespace millrace::sched {

using EventMailbox = async::Mailbox<GenerateEvent>;
using FlushReply = async::Mailbox<Result<void>>;

/// A request that RequestIntake has accepted.
struct Submission {
  SequenceId id;
  GenerateRequest request;
  EventMailbox events;
  async::TimePoint submitted;
};

/// Ends one sequence, which may have ended already.
struct AbortSequence {
  SequenceId id;
};

struct Pause {
  PauseMode mode = PauseMode::kInPlace;
};

struct Resume {};

/// Asks to forget all cached prefixes. The reply's mailbox is closed without a reply when the head stops.
struct Flush {
  async::TimePoint deadline;
  FlushReply reply;
};

/// Ends the waiting requests that another ring can run.
struct ReturnWaiting {
  std::string reason;
};

/// Breaks the ring, which is then built again.
struct Rebuild {
  std::string reason;
};

struct Stop {};

using Control = std::variant<Submission, AbortSequence, Pause, Resume, Flush, ReturnWaiting, Rebuild, Stop>;

}  // namespace millrace::sched
