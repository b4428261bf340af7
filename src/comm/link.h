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

/// One direction of the ring between two neighbours.
namespace millrace::comm {

enum class MessageKind : uint8_t { kPlan, kActivations, kOutput, kAcks };
/// The head's place among the ends of links; stages have their own ids.
inline constexpr StageId kHeadId{0xFFFFFFFF};
inline constexpr size_t kMessageKindCount = 4;
[[nodiscard]] std::string_view to_string(MessageKind kind);
/// Messages of a kind that may wait at either end; one more breaks the link. `window`: of what belongs to plans.
/// Acknowledgements of copies belong to none, and are as many as there are copies.
[[nodiscard]] size_t max_waiting(MessageKind kind, size_t window);

/// The counters of one end of a link since it was made.
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
  uint64_t send_queue_high_water = 0;  ///< messages of one kind that waited to be sent, at most
  int64_t round_trip_ns = 0;           ///< of the last heartbeat; 0 before the first
};

/// The bytes of a message: owned, or borrowed from a buffer of the sender that stays untouched until the last copy of
/// the payload is gone.
class Payload {
 public:
  Payload() = default;
  [[nodiscard]] static Payload own(std::vector<std::byte> bytes);
  /// `released` is set, from any thread, when the last copy is gone.
  [[nodiscard]] static Payload borrow(std::span<const std::byte> bytes, async::Event released);
  /// `owner` keeps `bytes` alive.
  [[nodiscard]] static Payload share(std::span<const std::byte> bytes, std::shared_ptr<const void> owner);
  [[nodiscard]] std::span<const std::byte> bytes() const { return bytes_; }

 private:
  std::span<const std::byte> bytes_;
  std::shared_ptr<const void> owner_;
};

/// Activations that a device receives by itself: work that reads them there may be submitted before they have come.
struct Arrival {
  explicit Arrival(async::Runtime& runtime) : event(runtime) {}
  async::Event event;     ///< they have come, or why they never will
  async::TimePoint at{};  ///< when, on the receiver's clock; good once the event is set
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
  /// The one place where a send is awaited; returns at once when there is nothing to wait for.
  [[nodiscard]] asio::awaitable<void> commit();

 private:
  std::optional<async::Event> released_;
};

/// The sending end. Used on the sender's executor. send() never blocks; what is sent of one kind arrives in order.
class LinkSender {
 public:
  virtual ~LinkSender() = default;
  /// Owned payload: fire and forget.
  virtual void send(MessageKind kind, RingEpoch epoch, PlanId plan, std::vector<std::byte> bytes) = 0;
  /// Borrowed payload: `bytes` must stay as it is until the Work is committed.
  virtual Work send_borrowed(MessageKind kind, RingEpoch epoch, PlanId plan, std::span<const std::byte> bytes) = 0;
  /// Whoever receives a kind gets what was sent of it before, then learns `reason`; one kind does not wait for another.
  virtual void close(std::string reason) = 0;
  /// Whether borrowed activations lie on the device; else a link to another process reads them on the host.
  [[nodiscard]] virtual bool reads_device() const { return false; }
  /// From any thread. Links within a process count nothing.
  [[nodiscard]] virtual LinkStats stats() const { return {}; }
};

/// The receiving end. Used on the receiver's executor. Kinds have an inbox each: one that comes early waits there.
class LinkReceiver {
 public:
  virtual ~LinkReceiver() = default;
  /// Whether activations lie where post() says. Else they stay at the sender's, and post() does nothing.
  [[nodiscard]] virtual bool fills_posted() const { return false; }
  /// Whether that is memory of the device. Messages of activations then have an Arrival.
  [[nodiscard]] virtual bool fills_device() const { return false; }
  /// The next activations not posted yet shall be those of `plan` and fill `target`: another plan or size ends the
  /// link. Without a post they wait at the sender. `target` is the link's until their payload has been let go, or
  /// close() has returned, or receive() of activations has thrown.
  virtual void post(PlanId /*plan*/, std::span<std::byte> /*target*/) {}
  /// The next message of `kind`. Throws ErrorException (kUnavailable, with the reason) once the link is closed and the
  /// inbox drained.
  [[nodiscard]] virtual asio::awaitable<Message> receive(MessageKind kind) = 0;
  /// Drops what is in the inboxes; every receive, also one under way, ends with `reason`. Over TCP the sender's end
  /// closes with it; within a process nothing tells the sender.
  virtual void close(std::string reason) = 0;
  /// From any thread. Links within a process count nothing.
  [[nodiscard]] virtual LinkStats stats() const { return {}; }
};

/// The next message of `kind`; nothing once the link is closed and the inbox drained. For who need not know why.
[[nodiscard]] asio::awaitable<std::optional<Message>> receive_until_closed(LinkReceiver& receiver, MessageKind kind);

struct Link {
  std::unique_ptr<LinkSender> sender;
  std::unique_ptr<LinkReceiver> receiver;
};

}  // namespace millrace::comm
