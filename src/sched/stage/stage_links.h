#pragma once

#include <memory>
#include <string>
#include <vector>

#include "comm/link.h"

namespace millrace::sched {

/// The links of one rank of a stage in one epoch. Those that a rank does not have are null.
///
/// A stage sends activations to the same rank of the next stage. Between leaders plans and acks go along, and the links
/// to and from the head are leaders' links. Inside a stage the leader passes plans on to its ranks. To the leader a
/// rank sends what the last stage sends to the head: acks, and outputs, which have no slices and carry its reports.
struct StageLinks {
  std::unique_ptr<comm::LinkReceiver> upstream;     ///< from the stage before, or from the head
  std::unique_ptr<comm::LinkSender> downstream;     ///< to the next stage, or to the head
  std::unique_ptr<comm::LinkReceiver> from_leader;  ///< plans; null on the leader
  std::unique_ptr<comm::LinkSender> to_leader;      ///< acks and outputs; null on the leader
  std::vector<comm::Link> ranks;                    ///< leader: plans to each other rank, and what comes back from it

  /// Returns where plans come from, and where acks and outputs go to.
  [[nodiscard]] comm::LinkReceiver& plans() { return from_leader ? *from_leader : *upstream; }
  [[nodiscard]] comm::LinkSender& results() { return to_leader ? *to_leader : *downstream; }
  /// Closes every link.
  void close(const std::string& reason) {
    if (upstream) upstream->close(reason);
    if (downstream) downstream->close(reason);
    if (from_leader) from_leader->close(reason);
    if (to_leader) to_leader->close(reason);
    for (comm::Link& rank : ranks) {
      rank.sender->close(reason);
      rank.receiver->close(reason);
    }
  }
};

}  // namespace millrace::sched
