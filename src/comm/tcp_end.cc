#include "comm/tcp_end.h"

#include <netinet/tcp.h>
#include <sys/socket.h>

#include <boost/asio/dispatch.hpp>
#include <boost/system/system_error.hpp>

#include "base/log.h"

namespace millrace::comm {
namespace {

using namespace std::chrono_literals;

/// Time that a failed lane waits for the goodbye on the other.
constexpr async::Duration kGoodbyeGrace = 100ms;
/// Unsent pongs of a working peer; one whose pings outrun the pongs by more is broken.
constexpr size_t kMaxPongs = 16;

std::vector<std::byte> reason_bytes(const std::string& reason) {
  const auto* begin = reinterpret_cast<const std::byte*>(reason.data());
  return {begin, begin + std::min(reason.size(), kMaxReasonBytes)};
}

}  // namespace

TcpEnd::TcpEnd(TcpLinkGroup& group, const LinkHello& hello, const TcpLinkOptions& options,
               const std::string& peer_address, bool sending)
    : group_(group),
      runtime_(group.runtime()),
      hello_(hello),
      options_(options),
      name_(link_name(hello)),
      peer_(fmt::format("{} at {}", endpoint_name(sending ? hello.to : hello.from), peer_address)),
      sending_(sending),
      control_(runtime_.executor()),
      data_(runtime_.executor()),
      silence_(runtime_, options.silence),
      control_writer_(runtime_, control_, counters_),
      ended_signal_(runtime_) {}

bool TcpEnd::open(LanePair lanes) {
  {
    const std::lock_guard lock(group_.mutex_);
    if (group_.closed_) return false;
    std::erase_if(group_.ends_, [](const std::weak_ptr<TcpEnd>& end) { return end.expired(); });
    group_.ends_.push_back(weak_from_this());
  }
  asio::dispatch(runtime_.executor(),
                 [self = shared_from_this(), lanes = std::move(lanes)]() mutable { self->start(std::move(lanes)); });
  return true;
}

void TcpEnd::start(LanePair lanes) {
  if (closing_) end(reason_);
  if (ended_) return;
  control_ = lanes.take(Lane::kControl, runtime_.executor());
  data_ = lanes.take(Lane::kData, runtime_.executor());
  control_.non_blocking(true);
  data_.non_blocking(true);
  spawn("writes control", write_control(shared_from_this()));
  spawn("reads control", read_control(shared_from_this()));
  spawn("keeps heartbeat", keep_heartbeat(shared_from_this()));
  start_data();
}

bool TcpEnd::spawn(std::string_view task, asio::awaitable<void> body) {
  return group_.tasks_.spawn(fmt::format("link {} {}", name_, task), std::move(body));
}

asio::awaitable<void> TcpEnd::write_control(Self) {
  std::exception_ptr failure;
  try {
    co_await control_writer_.run();
  } catch (...) {
    failure = std::current_exception();
  }
  if (failure) {
    co_await end_after_goodbye(describe_failure(failure));
  } else if (!ended_) {
    boost::system::error_code ignored;
    control_.shutdown(tcp::socket::shutdown_send, ignored);
  }
}

asio::awaitable<void> TcpEnd::read_control(Self) {
  std::exception_ptr failure;
  try {
    FrameReader reader(control_, FrameLimits(Lane::kControl, options_, !sending_), counters_, silence_);
    co_await read_frames(reader);
  } catch (...) {
    failure = std::current_exception();
  }
  if (failure) end(describe_failure(failure));
}

asio::awaitable<void> TcpEnd::read_frames(FrameReader& reader) {
  while (!ended_) {
    const FrameHeader header = co_await reader.read_header();
    if (header.kind == FrameKind::kPing) {
      answer_ping(header);
    } else if (header.kind == FrameKind::kPong) {
      note_round_trip(header);
    } else {
      std::vector<std::byte> bytes(header.payload_bytes);
      if (!reader.take(bytes)) co_await reader.read(bytes);
      if (header.kind != FrameKind::kGoodbye) {
        receive_message(header, std::move(bytes));
        continue;
      }
      received_goodbye_ = true;
      const bool ends = handle_goodbye(sanitize_reason(bytes));
      if (ends) end(reason_);
      co_return;
    }
  }
}

void TcpEnd::note_round_trip(const FrameHeader& pong) {
  const auto sent = static_cast<int64_t>(pong.number);
  const int64_t now = runtime_.now().time_since_epoch().count();
  if (sent > 0 && sent <= now) counters_.round_trip_ns.store(now - sent, std::memory_order_relaxed);
}

void TcpEnd::answer_ping(const FrameHeader& ping) {
  if (ended_ || control_writer_.finished()) return;
  if (control_writer_.waiting(FrameKind::kPong) >= kMaxPongs) {
    end(fmt::format("{} sends pings and takes no answers", peer_));
    return;
  }
  control_writer_.push(header_of(FrameKind::kPong, ping.number, 0));
}

asio::awaitable<void> TcpEnd::keep_heartbeat(Self) {
  silence_.on_receive();  // as of now: the handshake is over
  async::TimePoint next_ping = runtime_.now();
  while (!ended_) {
    const async::TimePoint now = runtime_.now();
    if (now >= next_ping) {
      send_ping(now);
      next_ping = now + options_.heartbeat;
    }
    async::TimePoint wake = next_ping;
    if (closing_) wake = std::min(wake, close_deadline_);
    if (!received_goodbye_) wake = std::min(wake, silence_.next_check());
    (void)co_await ended_signal_.wait_until(wake);
    if (ended_) co_return;
    if (closing_ && runtime_.now() >= close_deadline_) {
      end(fmt::format("{} (what was sent before could not be delivered within {:.1f} s)", reason_,
                      async::to_seconds(options_.linger)));
    } else if (!received_goodbye_ && silence_.has_expired(wake)) {
      end(fmt::format("{} has been silent for {:.1f} s", peer_, async::to_seconds(silence_.length())));
    }
  }
}

void TcpEnd::send_ping(async::TimePoint now) {
  if (control_writer_.finished() || control_writer_.waiting() > 0) return;
  control_writer_.push(header_of(FrameKind::kPing, static_cast<uint64_t>(now.time_since_epoch().count()), 0));
}

void TcpEnd::begin_closing() {
  closing_ = true;
  close_deadline_ = runtime_.now() + options_.linger;
}

void TcpEnd::say_goodbye() {
  const auto text = reason_bytes(reason_);
  control_writer_.push(header_of(FrameKind::kGoodbye, 0, text.size()), Payload::own(text));
  control_writer_.finish();
}

void TcpEnd::try_goodbye() {
  if (control_writer_.finished() || control_writer_.mid_frame() || !control_.is_open()) return;
  const auto text = reason_bytes(reason_);
  const auto header = encode_header(header_of(FrameKind::kGoodbye, 0, text.size()));
  boost::system::error_code ignored;
  control_.send(std::array{asio::const_buffer(asio::buffer(header)), asio::const_buffer(asio::buffer(text))}, 0,
                ignored);
}

void TcpEnd::end(const std::string& reason) {
  if (std::exchange(ended_, true)) return;
  const bool orderly = reason == reason_;
  set_reason(reason);
  log::at(orderly ? log::Level::kInfo : log::Level::kWarn, "link {} with {} {}: {}", name_, peer_,
          orderly ? "is closed" : "is broken", reason);
  try_goodbye();
  boost::system::error_code ignored;
  control_.close(ignored);
  data_.close(ignored);
  control_writer_.abandon();
  counters_.open = false;
  handle_end();
  ended_signal_.notify_all();
}

asio::awaitable<void> TcpEnd::end_after_goodbye(std::string reason) {
  const async::TimePoint deadline = runtime_.now() + kGoodbyeGrace;
  while (!ended_ && runtime_.now() < deadline) (void)co_await ended_signal_.wait_until(deadline);
  end(reason);
}

void TcpEnd::set_reason(const std::string& reason) {
  if (reason_.empty()) reason_ = reason.empty() ? "no reason was given" : reason;
}

std::string TcpEnd::describe_failure(const std::exception_ptr& failure) const {
  try {
    std::rethrow_exception(failure);
  } catch (const boost::system::system_error& error) {
    const bool said_goodbye = closing_ && control_writer_.finished() && control_writer_.waiting() == 0;
    if (error.code() == asio::error::eof && said_goodbye) return reason_;
    if (error.code() == asio::error::eof) return peer_ + " closed the connection without a goodbye";
    return fmt::format("the connection with {} failed: {}", peer_, error.code().message());
  } catch (const std::exception& error) {
    return fmt::format("{} sent a malformed frame: {}", peer_, error.what());
  }
}

FrameHeader TcpEnd::header_of(FrameKind kind, uint64_t number, size_t payload_bytes) const {
  return {.kind = kind, .epoch = hello_.epoch, .number = number, .payload_bytes = payload_bytes};
}

LinkStats TcpEnd::stats() const {
  LinkStats stats;
  stats.name = name_;
  stats.from = hello_.from;
  stats.to = hello_.to;
  stats.sending = sending_;
  stats.open = counters_.open;
  stats.bytes_sent = counters_.bytes_sent;
  stats.bytes_received = counters_.bytes_received;
  stats.messages_sent = counters_.messages_sent;
  stats.messages_received = counters_.messages_received;
  stats.messages_dropped = counters_.messages_dropped;
  stats.send_queue_high_water = counters_.send_queue_high_water;
  stats.round_trip_ns = counters_.round_trip_ns;
  return stats;
}

void tune_socket(tcp::socket& socket, Lane lane, const TcpLinkOptions& options) {
  const auto set = [&socket](int level, int name, int value) {
    (void)setsockopt(socket.native_handle(), level, name, &value, sizeof value);
  };
  const auto silence_s = std::chrono::duration_cast<std::chrono::seconds>(options.silence).count();
  const auto silence_ms = std::chrono::duration_cast<std::chrono::milliseconds>(options.silence).count();
  set(IPPROTO_TCP, TCP_NODELAY, 1);
  set(SOL_SOCKET, SO_KEEPALIVE, 1);
  set(IPPROTO_TCP, TCP_KEEPIDLE, static_cast<int>(std::max<int64_t>(1, silence_s)));
  set(IPPROTO_TCP, TCP_KEEPINTVL, 1);
  set(IPPROTO_TCP, TCP_KEEPCNT, 3);
  // A data lane may find no room at its receiver for as long as nobody posts, which the kernel counts too.
  if (lane == Lane::kControl) set(IPPROTO_TCP, TCP_USER_TIMEOUT, static_cast<int>(2 * silence_ms));
  if (options.socket_buffer_bytes > 0) {
    set(SOL_SOCKET, SO_SNDBUF, options.socket_buffer_bytes);
    set(SOL_SOCKET, SO_RCVBUF, options.socket_buffer_bytes);
  }
}

}  // namespace millrace::comm
