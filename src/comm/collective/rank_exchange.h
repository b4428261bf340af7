#pragma once

#include <poll.h>

#include <array>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "comm/collective/rank_connection.h"
#include "tensor/rank_call.h"

namespace millrace::comm {

/// The header of each message between two ranks: what the sender calls, and how far it is.
struct RankMessageHeader {
  uint64_t turn = 0;  ///< calls of this end so far
  uint32_t step = 0;  ///< exchanges of this call so far
  uint32_t rank = 0;  ///< of the sender
  tensor::RankCall call;
};

/// Exchanges one message with one peer: both directions at once, in pieces, while it watches all peers for a goodbye.
/// Owned by a TcpCollective and used on its worker thread, which it blocks.
class RankExchange {
 public:
  /// What is done with the payload: called with the bytes that have been sent and received so far, at last with all.
  using Progress = std::function<void(size_t sent, size_t received)>;

  RankExchange(const std::vector<std::unique_ptr<RankConnection>>& peers, std::chrono::milliseconds silence)
      : peers_(peers), silence_(silence) {}

  /// Throws PeerLost when a peer has said goodbye since the last call.
  void check_goodbyes();
  /// Sends `from` and receives as many bytes as `into` has. The peer does the reverse with an equal header. Throws
  /// PeerLost when a peer is gone, silent, or makes another call.
  void run(RankConnection& peer, const RankMessageHeader& header, std::span<const std::byte> from,
           std::span<std::byte> into, const Progress& progress);

 private:
  static constexpr size_t kHeaderBytes = 40;
  using HeaderBytes = std::array<std::byte, kHeaderBytes>;
  [[nodiscard]] static HeaderBytes encode(const RankMessageHeader& header);
  static void check_same(const RankMessageHeader& own, const HeaderBytes& theirs);
  /// Throws PeerLost when one of `watched`, the control lanes of the peers, has something to read.
  void check_goodbyes(std::span<const pollfd> watched);
  void wait(const RankConnection& peer, bool sending, bool receiving);

  const std::vector<std::unique_ptr<RankConnection>>& peers_;
  const std::chrono::milliseconds silence_;
};

}  // namespace millrace::comm
