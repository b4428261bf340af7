#pragma once

#include <boost/asio/awaitable.hpp>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "async/task_group.h"
#include "base/ids.h"
#include "base/result.h"
#include "comm/lane_pair.h"
#include "comm/link.h"

/// Links over TCP, with one connection for activations (the data lane) and one for everything else (the control lane).
/// docs/wire.md is their contract. The Runtimes must be real ones, since sockets need an io_context.
namespace millrace::comm {

class TcpEnd;

inline constexpr uint8_t kProtocolVersion = 6;

/// The facts that both ends of a link must agree on. Every field is compared, and a difference is refused by its name.
struct LinkHello {
  uint8_t protocol_version = kProtocolVersion;
  uint64_t ring = 0;  ///< random, chosen by the head
  RingEpoch epoch;
  StageId from;  ///< or kHeadId
  StageId to;
  uint64_t fingerprint_high = 0;  ///< of the model
  uint64_t fingerprint_low = 0;
  uint32_t page_size = 0;         ///< tokens
  uint32_t layer_count = 0;       ///< of the whole model
  uint32_t hidden_row_bytes = 0;  ///< one row of activations
  friend bool operator==(const LinkHello&, const LinkHello&) = default;
};

struct TcpEndpoint {
  std::string host;  ///< a name, or an address; here addresses only
  uint16_t port = 0;
  [[nodiscard]] std::string to_string() const;  ///< host:port, [host]:port when host has colons
  /// Returns the endpoint as another host gets it. A loopback address is left out: it is that of the sender's host,
  /// whose address the receiver knows by their connection.
  [[nodiscard]] TcpEndpoint for_others() const;
  friend bool operator==(const TcpEndpoint&, const TcpEndpoint&) = default;
};

struct TcpLinkOptions {
  size_t window = 1;  ///< messages of a plan's kinds that may wait at either end; more break the link
  uint64_t max_plan_bytes = uint64_t{16} << 20;
  uint64_t max_output_bytes = uint64_t{64} << 20;
  uint64_t max_ack_bytes = uint64_t{1} << 20;
  uint64_t max_activation_bytes = uint64_t{1} << 30;
  async::Duration heartbeat = std::chrono::milliseconds(250);
  async::Duration silence = std::chrono::milliseconds(1500);  ///< a peer that is silent for longer breaks the link
  async::Duration linger = std::chrono::seconds(5);  ///< time for a closed link to deliver what was sent before
  int socket_buffer_bytes = 0;                       ///< 0: as the kernel tunes it
};

/// Owns the coroutines of all TCP link ends that are used on one Runtime, which outlives it. A link end that is
/// destroyed leaves coroutines here that say goodbye; they end within TcpLinkOptions::linger. Destroyed after
/// shutdown(), or after all link ends are gone and the Runtime has run out of work.
class TcpLinkGroup {
 public:
  explicit TcpLinkGroup(async::Runtime& runtime) : runtime_(runtime), tasks_(runtime) {}

  /// Closes what is open, and returns when every coroutine has ended. Called on the Runtime's executor.
  [[nodiscard]] asio::awaitable<void> shutdown();
  /// Returns the counters of every link end that has not ended, from any thread.
  [[nodiscard]] std::vector<LinkStats> stats() const;
  [[nodiscard]] async::Runtime& runtime() { return runtime_; }

 private:
  friend class TcpEnd;
  async::Runtime& runtime_;
  async::TaskGroup tasks_;  // on the Runtime's executor
  mutable std::mutex mutex_;
  std::vector<std::weak_ptr<TcpEnd>> ends_;  // guarded by mutex_
  bool closed_ = false;                      // guarded by mutex_
};

struct TcpListenerOptions {
  async::Duration hello_timeout = std::chrono::seconds(2);  ///< for a stranger to present a hello that is expected
  size_t max_pending_connections = 64;                      ///< connections that have not yet done so
};

/// Accepts the receiving ends of links on a listening socket. Strangers, garbage and wrong hellos are closed with one
/// log line and have no other effect. Lives on one Runtime; destroyed after shutdown(), or after close() when the
/// Runtime has run out of work.
class TcpListener {
 public:
  /// Listens at `endpoint`, an address of this host; port 0 lets the system choose. From any thread.
  [[nodiscard]] static Result<std::unique_ptr<TcpListener>> open(async::Runtime& runtime, const TcpEndpoint& endpoint,
                                                                 TcpListenerOptions options = {});
  ~TcpListener();

  /// Returns the address that it listens at, with the chosen port.
  [[nodiscard]] const TcpEndpoint& endpoint() const { return endpoint_; }
  /// Waits until both lanes of the sender with this hello have come. The receiver is used on `group`'s Runtime, which
  /// need not be the listener's. Several calls may wait at once, for different (from, to). A peer with the same (from,
  /// to) but other differences is refused with the reason; a later one may still match. Errors: kTimeout at `deadline`,
  /// with the last refusal; kUnavailable after close().
  [[nodiscard]] asio::awaitable<Result<std::unique_ptr<LinkReceiver>>> accept_link(TcpLinkGroup& group,
                                                                                   LinkHello expected,
                                                                                   TcpLinkOptions options,
                                                                                   async::TimePoint deadline);
  /// Acts as accept_link(), and returns the sockets themselves for a use of their own.
  [[nodiscard]] asio::awaitable<Result<LanePair>> accept_lanes(LinkHello expected, TcpLinkOptions options,
                                                               async::TimePoint deadline);
  /// Stops listening; every accept_link ends.
  void close();
  [[nodiscard]] asio::awaitable<void> shutdown();

 private:
  class State;
  TcpListener(std::unique_ptr<State> state, TcpEndpoint endpoint);
  std::unique_ptr<State> state_;
  const TcpEndpoint endpoint_;
};

/// Connects both lanes, on `runtime`, and presents `hello`; tries again while the peer does not listen or does not
/// expect the link yet. The sender is used on `group`'s Runtime, which need not be `runtime`. Errors: kTimeout at
/// `deadline`, with the last failure; kInvalidArgument for an endpoint that is no address. kInvalidArgument with the
/// peer's reason means that the hello can never match.
[[nodiscard]] asio::awaitable<Result<std::unique_ptr<LinkSender>>> connect_link(async::Runtime& runtime,
                                                                                TcpLinkGroup& group,
                                                                                TcpEndpoint endpoint, LinkHello hello,
                                                                                TcpLinkOptions options,
                                                                                async::TimePoint deadline);
/// Acts as connect_link(), and returns the sockets themselves for a use of their own.
[[nodiscard]] asio::awaitable<Result<LanePair>> connect_lanes(async::Runtime& runtime, TcpEndpoint endpoint,
                                                              LinkHello hello, TcpLinkOptions options,
                                                              async::TimePoint deadline);

}  // namespace millrace::comm
