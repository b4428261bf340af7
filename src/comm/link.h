#pragma once

#include <boost/asio/awaitable.hpp>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "async/event.h"
#include "base/ids.h"

/// Links: one direction of the ring between two neighbours.
namespace millrace::comm {

enum class MessageKind : uint8_t { kPlan, kActivations, kOutput, kAcks };
/// The head's id as an end of links; stages have their own ids.
inline constexpr StageId kHeadId{0xFFFFFFFF};
/// The ids of the ranks of a stage as ends of links: the number of the stage, and above it the rank. Rank 0 has the id
/// of the stage. The connections of a collective have ids of their own.
inline constexpr uint32_t kRankIdShift = 24;
inline constexpr uint32_t kMaxRankId = 15;
inline constexpr uint32_t kCollectiveIdBit = uint32_t{1} << 28;
[[nodiscard]] constexpr StageId rank_id(StageId stage, uint32_t rank) {
  return StageId(stage.value() | rank << kRankIdShift);
}
[[nodiscard]] constexpr StageId collective_id(StageId stage, uint32_t rank) {
  return StageId(rank_id(stage, rank).value() | kCollectiveIdBit);
}

inline constexpr size_t kMessageKindCount = 4;
[[nodiscard]] std::string_view to_string(MessageKind kind);
/// Returns how many messages of a kind may wait at either end; one more breaks the link. `window` bounds the kinds that
/// belong to plans. Acknowledgements of copies belong to no plan, and are as many as there are copies.
[[nodiscard]] size_t max_waiting(MessageKind kind, size_t window);

/// Counters of one end of a link since it was opened.
struct LinkStats {
  std::string name;  ///< "stage 0 -> stage 1"
  StageId from;      ///< kHeadId for the head, as in `to`
  StageId to;
  bool sending = false;  ///< which end this is
  bool open = true;
  uint64_t bytes_sent = 0;  ///< on the wire, with headers and heartbeats
  uint64_t bytes_received = 0;
  uint64_t messages_sent = 0;  ///< all but heartbeats
  uint64_t messages_received = 0;
  uint64_t messages_dropped = 0;       ///< of an older epoch
  uint64_t send_queue_high_water = 0;  ///< largest number of messages of one kind that waited to be sent
  int64_t round_trip_ns = 0;           ///< of the last heartbeat; 0 before the first
};

/// The bytes of a message: owned, or borrowed from a buffer of the sender. A borrowed buffer stays untouched until the
/// last copy of the payload is gone.
class Payload {
 public:
  Payload() = default;
  [[nodiscard]] static Payload own(std::vector<std::byte> bytes);
  /// Borrows `bytes`. `released` is set, from any thread, when the last copy of the payload is gone.
  [[nodiscard]] static Payload borrow(std::span<const std::byte> bytes, async::Event released);
  /// Shares `bytes`, which `owner` keeps alive.
  [[nodiscard]] static Payload share(std::span<const std::byte> bytes, std::shared_ptr<const void> owner);
  [[nodiscard]] std::span<const std::byte> bytes() const { return bytes_; }

 private:
  std::span<const std::byte> bytes_;
  std::shared_ptr<const void> owner_;
};

/// The arrival of activations that a device receives by itself: work that reads them there may be submitted before.
struct Arrival {
  explicit Arrival(async::Runtime& runtime) : event(runtime) {}
  async::Event event;     ///< the activations are there, or the reason why they never will be
  async::TimePoint at{};  ///< on the receiver's clock; valid once the event is set
};

struct Message {
  MessageKind kind = MessageKind::kPlan;
  RingEpoch epoch;
  PlanId plan;
  Payload payload;
  async::TimePoint arrived{};             ///< on the receiver's clock; the origin of time when the link does not know
  std::shared_ptr<Arrival> arrival = {};  ///< null: the payload is there
};

/// A send under way. The memory that the payload borrows may be written again after commit().
class [[nodiscard]] Work {
 public:
  Work() = default;  ///< nothing under way
  explicit Work(async::Event released) : released_(std::move(released)) {}
  /// Awaits the send; returns at once when there is nothing to wait for.
  [[nodiscard]] asio::awaitable<void> commit();

 private:
  std::optional<async::Event> released_;
};

/// The sending end of a link, owned by its user and used on the sender's executor. It never blocks; messages of one
/// kind arrive in order.
class LinkSender {
 public:
  virtual ~LinkSender() = default;
  /// Sends an owned payload; the caller need not wait.
  virtual void send(MessageKind kind, RingEpoch epoch, PlanId plan, std::vector<std::byte> bytes) = 0;
  /// Sends a borrowed payload: `bytes` must stay unchanged until the Work is committed.
  virtual Work send_borrowed(MessageKind kind, RingEpoch epoch, PlanId plan, std::span<const std::byte> bytes) = 0;
  /// Closes the link: receivers of each kind get what was sent of it before, then `reason`. No kind waits for another.
  virtual void close(std::string reason) = 0;
  /// Returns whether borrowed activations lie on the device; otherwise a link to another process reads them on the
  /// host.
  [[nodiscard]] virtual bool reads_device() const { return false; }
  /// From any thread. Links within a process count nothing.
  [[nodiscard]] virtual LinkStats stats() const { return {}; }
};

/// The receiving end of a link, owned by its user and used on the receiver's executor. Each kind has an inbox, in which
/// early messages wait.
class LinkReceiver {
 public:
  virtual ~LinkReceiver() = default;
  /// Returns whether activations arrive in memory given by post(). Otherwise they stay at the sender, and post() does
  /// nothing.
  [[nodiscard]] virtual bool fills_posted() const { return false; }
  /// Returns whether post() takes memory of the device. Messages of activations then have an Arrival.
  [[nodiscard]] virtual bool fills_device() const { return false; }
  /// Receives the next activations, which must be those of `plan`, into `target`: another plan or size ends the link.
  /// Without a post they wait at the sender. The link uses `target` until their payload is released, close() has
  /// returned, or receive() of activations has thrown.
  virtual void post(PlanId /*plan*/, std::span<std::byte> /*target*/) {}
  /// Waits for the next message of `kind`. Throws ErrorException (kUnavailable, with the reason) once the link is
  /// closed and the inbox drained.
  [[nodiscard]] virtual asio::awaitable<Message> receive(MessageKind kind) = 0;
  /// Drops what is in the inboxes; every receive, also one under way, ends with `reason`. Over TCP the sender's end
  /// closes too; within a process the sender is not notified.
  virtual void close(std::string reason) = 0;
  /// From any thread. Links within a process count nothing.
  [[nodiscard]] virtual LinkStats stats() const { return {}; }
};

/// Waits for the next message of `kind`; returns nothing once the link is closed and the inbox drained, for whatever
/// reason.
[[nodiscard]] asio::awaitable<std::optional<Message>> receive_until_closed(LinkReceiver& receiver, MessageKind kind);

struct Link {
  std::unique_ptr<LinkSender> sender;
  std::unique_ptr<LinkReceiver> receiver;
};

}  // namespace millrace::comm
