#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "comm/collective/rank_connection.h"

namespace millrace::comm {

/// The header of each message between two ranks that share experts: what the sender calls, and with what.
struct ExpertMessageHeader {
  enum class Kind : uint64_t { kBegin, kDispatch, kCombine };
  uint64_t turn = 0;  ///< calls of the sender so far
  uint64_t step = 0;
  Kind kind = Kind::kBegin;
  int64_t rows = 0;  ///< that follow; in kBegin 1 if the sender's ring has any, and none follow
  int64_t row_bytes = 0;
};

/// One message to a peer and the peer's message of the same call.
struct ExpertTransfer {
  size_t peer = 0;
  ExpertMessageHeader own;
  std::array<std::span<const std::byte>, 2> out;  ///< the rows, one after the other
  ExpertMessageHeader theirs;                     ///< valid once all headers have come
  std::array<std::span<std::byte>, 2> in;         ///< for the rows of the peer, from then on
};

/// Exchanges the messages of one call with several peers at once, in pieces, while it watches all peers for a goodbye.
/// Owned by one end of an exchange and used on its worker thread, which it blocks.
class ExpertTransfers {
 public:
  /// `ended` is set, from any thread, before all peers' lanes are ended.
  ExpertTransfers(std::vector<std::shared_ptr<RankConnection>> peers, const std::atomic<bool>& ended)
      : peers_(std::move(peers)), ended_(ended) {}

  /// Exchanges `transfers`. When the headers of all have come, calls `on_headers`, which sets `in` of each. Returns
  /// false once the exchange has ended. Throws PeerLost when a peer is gone, and PeerGoodbye when it has said why.
  [[nodiscard]] bool run(std::span<ExpertTransfer> transfers, const std::function<void()>& on_headers);
  /// Returns the peer that the last exception is about.
  [[nodiscard]] size_t failed_peer() const { return current_; }

 private:
  static constexpr size_t kHeaderBytes = 40;
  static constexpr size_t kMaxPeers = 7;
  using HeaderBytes = std::array<std::byte, kHeaderBytes>;
  /// How far one transfer is.
  struct Progress {
    HeaderBytes own{};
    HeaderBytes theirs{};
    size_t sent = 0;  // of header and rows, as the next
    size_t received = 0;
  };
  [[nodiscard]] static HeaderBytes encode(const ExpertMessageHeader& header);
  [[nodiscard]] static ExpertMessageHeader decode(const HeaderBytes& bytes);
  [[nodiscard]] size_t send_some(const ExpertTransfer& transfer, Progress& progress);
  [[nodiscard]] size_t receive_some(const ExpertTransfer& transfer, Progress& progress, bool has_headers);
  [[nodiscard]] bool wait(std::span<const ExpertTransfer> transfers, bool has_headers);

  const std::vector<std::shared_ptr<RankConnection>> peers_;
  const std::atomic<bool>& ended_;
  std::array<Progress, kMaxPeers> progress_;  // of the call under way, by transfer
  size_t current_ = 0;                        // the peer that is looked at
};

}  // namespace millrace::comm
