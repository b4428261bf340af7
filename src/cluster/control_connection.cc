#include "cluster/control_connection.h"

#include <boost/asio/read.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>

#include "comm/frame.h"

namespace millrace::cluster {
namespace {

using asio::redirect_error;
using asio::use_awaitable;
using boost::system::error_code;

/// Returns the address as other hosts know it: a listener at [::] sees IPv4 peers as IPv6, which other hosts may lack.
asio::ip::address unmapped(const asio::ip::address& address) {
  if (!address.is_v6() || !address.to_v6().is_v4_mapped()) return address;
  return asio::ip::make_address_v4(asio::ip::v4_mapped, address.to_v6());
}

}  // namespace

std::string printable(const std::string& text) {
  return comm::sanitize_reason(std::as_bytes(std::span(text)));
}

ControlConnection::ControlConnection(async::Runtime& runtime, asio::ip::tcp::socket socket, ControlTiming timing,
                                     ControlBounds bounds)
    : runtime_(runtime),
      socket_(std::move(socket)),
      timing_(timing),
      bounds_(bounds),
      tasks_(runtime, [this](const std::string&, std::exception_ptr error) { end(async::describe(error)); }),
      incoming_signal_(runtime),
      outgoing_signal_(runtime),
      ended_signal_(runtime),
      quiet_watch_(runtime, std::min(timing.quiet_limit, timing.silence_limit)),
      silence_(runtime, timing.silence_limit) {
  error_code ignored;
  socket_.set_option(asio::ip::tcp::no_delay(true), ignored);
  const auto endpoint = socket_.remote_endpoint(ignored);
  peer_host_ = unmapped(endpoint.address()).to_string();
  peer_ = comm::TcpEndpoint{peer_host_, endpoint.port()}.to_string();
}

ControlConnection::~ControlConnection() = default;

void ControlConnection::start() {
  tasks_.spawn("control read", read_messages());
  tasks_.spawn("control write", write_messages());
  tasks_.spawn("control watch", watch());
}

void ControlConnection::send(const Message& message) {
  if (ended_ || closing_) return;
  if (outgoing_.size() >= bounds_.queued) {
    end("it does not read our messages");
    return;
  }
  outgoing_.push_back(encode(message));
  outgoing_signal_.notify_all();
}

asio::awaitable<Message> ControlConnection::receive() {
  while (incoming_.empty() && !ended_) co_await incoming_signal_.wait();
  if (incoming_.empty()) throw ErrorException(Error{ErrorCode::kUnavailable, end_reason_});
  Message message = std::move(incoming_.front());
  incoming_.pop_front();
  co_return message;
}

void ControlConnection::close(const std::string& reason) {
  if (ended_ || closing_) return;
  send(Goodbye{reason});
  closing_ = true;
  close_deadline_ = runtime_.now() + std::min(timing_.quiet_limit, timing_.silence_limit);
  end_reason_ = reason;
}

void ControlConnection::end(const std::string& reason) {
  if (std::exchange(ended_, true)) return;
  if (end_reason_.empty()) end_reason_ = reason;
  error_code ignored;
  socket_.close(ignored);
  incoming_signal_.notify_all();
  outgoing_signal_.notify_all();
  ended_signal_.notify_all();
}

asio::awaitable<void> ControlConnection::read_messages() {
  while (!ended_) {
    uint32_t length = 0;
    error_code failure;
    co_await asio::async_read(socket_, asio::buffer(&length, sizeof length), redirect_error(use_awaitable, failure));
    if (failure || length > bounds_.message_bytes) {
      end(failure ? "connection lost: " + failure.message() : "it sends something else than a control message");
      co_return;
    }
    std::vector<std::byte> bytes(length);
    co_await asio::async_read(socket_, asio::buffer(bytes), redirect_error(use_awaitable, failure));
    if (failure) continue;
    hear();
    auto message = decode(bytes);
    received_message_ |= message.has_value();
    if (message.has_error()) {
      end(message.error().message);
    } else if (const auto* goodbye = std::get_if<Goodbye>(&*message)) {
      received_goodbye_ = true;
      end(printable(goodbye->reason));
    } else if (!std::holds_alternative<Ping>(*message)) {
      if (incoming_.size() >= bounds_.queued) end("it sends more than this node may buffer");
      incoming_.push_back(std::move(*message));
      incoming_signal_.notify_all();
    }
  }
}

asio::awaitable<void> ControlConnection::write_messages() {
  while (!ended_) {
    if (outgoing_.empty()) {
      if (closing_) {
        end(end_reason_);
        co_return;
      }
      co_await outgoing_signal_.wait();
      continue;
    }
    const std::vector<std::byte> bytes = std::move(outgoing_.front());
    outgoing_.pop_front();
    const auto length = static_cast<uint32_t>(bytes.size());
    const std::array<asio::const_buffer, 2> frame{asio::buffer(&length, sizeof length), asio::buffer(bytes)};
    error_code failure;
    co_await asio::async_write(socket_, frame, redirect_error(use_awaitable, failure));
    if (failure) end("connection lost: " + failure.message());
  }
}

void ControlConnection::hear() {
  silence_.on_receive();
  quiet_watch_.on_receive();
  set_quiet(false);
}

void ControlConnection::set_quiet(bool quiet) {
  if (std::exchange(quiet_, quiet) != quiet && on_quiet_) on_quiet_(quiet);
}

asio::awaitable<void> ControlConnection::watch() {
  hear();
  async::TimePoint next_ping = runtime_.now() + timing_.ping_interval;
  while (!ended_) {
    const async::TimePoint now = runtime_.now();
    if (now >= next_ping) {
      send(Ping{});
      next_ping = now + timing_.ping_interval;
    }
    async::TimePoint wake = std::min(next_ping, silence_.next_check());
    if (!quiet_) wake = std::min(wake, quiet_watch_.next_check());
    (void)co_await ended_signal_.wait_until(wake);
    if (ended_) co_return;
    if (closing_ && runtime_.now() >= close_deadline_) {
      end(end_reason_);
    } else if (silence_.has_expired(wake)) {
      end(fmt::format("silent for {:.1f} s", std::chrono::duration<double>(silence_.length()).count()));
    } else if (!quiet_ && quiet_watch_.has_expired(wake)) {
      set_quiet(true);
    }
  }
}

}  // namespace millrace::cluster
