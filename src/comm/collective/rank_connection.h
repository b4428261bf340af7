#pragma once

#include <chrono>
#include <cstddef>
#include <span>
#include <stdexcept>
#include <string>

#include "comm/frame.h"

namespace millrace::comm {

/// The failure of a peer or of its connection. The message is the reason for which the group ends.
class PeerLost : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// The goodbye of a peer. The message is the reason that it gives.
class PeerGoodbye : public PeerLost {
  using PeerLost::PeerLost;
};

/// The connection of a rank with another rank of its stage, in this ring or another. The data lane carries both
/// directions of the exchanges, and the control lane a goodbye. Owned by an end of an exchange and used on its
/// worker thread, where it never blocks.
class RankConnection {
 public:
  /// `name` is the peer's: "rank 1 of stage 0".
  RankConnection(LanePair lanes, const std::string& name, RingEpoch epoch);
  ~RankConnection();
  RankConnection(const RankConnection&) = delete;
  RankConnection& operator=(const RankConnection&) = delete;

  /// Sends the beginning of `first` and `second` as far as the kernel takes it. Returns the number of bytes.
  [[nodiscard]] size_t try_send(std::span<const std::byte> first, std::span<const std::byte> second);
  /// Receives the next bytes, as many as have come. Returns 0 when there are none.
  [[nodiscard]] size_t try_receive(std::span<std::byte> into);
  /// Throws PeerGoodbye when the peer has said goodbye, and PeerLost when it is gone. Waits up to `patience` for that.
  void check_goodbye(std::chrono::milliseconds patience = {});
  /// Throws PeerLost for a lane that has failed with `what`, or the peer's goodbye, for which it waits a moment.
  [[noreturn]] void throw_lost(const char* what);

  /// Sends the reason as a goodbye and ends both lanes. From any thread, once.
  void end(const std::string& reason);

  [[nodiscard]] const std::string& name() const { return name_; }
  [[nodiscard]] int data() const { return data_; }
  [[nodiscard]] int control() const { return control_; }

 private:
  const std::string name_;  // "rank 1 of stage 0 at 10.0.0.1:4000"
  const RingEpoch epoch_;
  const int control_;
  const int data_;
};

}  // namespace millrace::comm
