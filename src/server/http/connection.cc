#include "server/http/connection.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <boost/asio/as_tuple.hpp>
#include <boost/asio/buffer.hpp>
#include <boost/asio/use_awaitable.hpp>

#include "server/http/http_parser.h"
#include "server/openai/error.h"

namespace millrace::server {
namespace {

using asio::ip::tcp;
using boost::system::error_code;
constexpr auto kOutcome = asio::as_tuple(asio::use_awaitable);
constexpr size_t kReadBytes = 16u << 10;
constexpr std::string_view kContinue = "HTTP/1.1 100 Continue\r\n\r\n";

HttpResponse error_reply(unsigned status, std::string message) {
  return openai::error_response(openai::ApiError{status, std::move(message), ""});
}

bool would_block(const error_code& failure) {
  return failure == asio::error::would_block || failure == asio::error::try_again;
}

}  // namespace

Connection::Connection(async::Runtime& runtime, tcp::socket socket, const ServerOptions& options, BodyBudget& bodies)
    : socket_(std::move(socket)), options_(options), bodies_(bodies), deadline_(runtime, [this] {
        timed_out_ = true;
        error_code ignored;
        socket_.cancel(ignored);
      }) {
  error_code ignored;  // a socket that is dead already fails at its first read
  socket_.non_blocking(true, ignored);
  socket_.set_option(tcp::no_delay(true), ignored);
  socket_.set_option(asio::socket_base::keep_alive(true), ignored);
  if (options.send_buffer_bytes > 0) {
    socket_.set_option(asio::socket_base::send_buffer_size(options.send_buffer_bytes), ignored);
  }
}

void Connection::stop_reading() {
  stopping_ = true;
  error_code ignored;
  if (reading_) socket_.cancel(ignored);
}

asio::awaitable<Connection::Incoming> Connection::read_request(const HeadCheck& head_check) {
  if (buffer_.empty()) buffer_ = std::string();
  reading_ = true;
  timed_out_ = false;
  // The parser comes to life only now: most connections are idle most of the time.
  Incoming incoming;
  const ReadOutcome first = co_await wait_for_first_byte();
  if (first == ReadOutcome::kBytes) incoming = co_await parse_request(head_check);
  reading_ = false;
  if (buffer_.empty()) buffer_ = std::string();
  co_return incoming;
}

asio::awaitable<Connection::ReadOutcome> Connection::wait_for_first_byte() {
  if (!buffer_.empty()) co_return ReadOutcome::kBytes;
  if (stopping_) co_return ReadOutcome::kClosed;
  deadline_.expire_after(options_.idle_timeout);
  const auto [failure] = co_await socket_.async_wait(tcp::socket::wait_read, kOutcome);
  deadline_.expire_never();
  co_return failure ? ReadOutcome::kClosed : ReadOutcome::kBytes;
}

error_code Connection::read_available() {
  // By way of the stack, so that what a connection keeps is no larger than what it has read.
  std::array<char, kReadBytes> block;
  error_code failure;
  const size_t count = socket_.read_some(asio::buffer(block), failure);
  buffer_.append(block.data(), count);
  return failure;
}

asio::awaitable<Connection::ReadOutcome> Connection::fill() {
  for (;;) {
    const error_code failure = read_available();
    if (!failure) co_return ReadOutcome::kBytes;
    if (!would_block(failure) || (stopping_ && reading_)) co_return ReadOutcome::kClosed;
    const auto [wait_failure] = co_await socket_.async_wait(tcp::socket::wait_read, kOutcome);
    if (timed_out_) co_return ReadOutcome::kTimeout;
    if (wait_failure) co_return ReadOutcome::kClosed;
  }
}

std::string Connection::timeout_message(bool in_body) const {
  return fmt::format("the request's {0} did not arrive within {1} s (--{0}-timeout)", in_body ? "body" : "header",
                     std::chrono::duration<double>(in_body ? options_.body_timeout : options_.header_timeout).count());
}

HttpResponse Connection::body_budget_error() const {
  return error_reply(503,
                     fmt::format("request bodies take {} of {} bytes: there is no room for this one (--max-bodies-mib)",
                                 bodies_.used_bytes(), bodies_.limit()));
}

asio::awaitable<Connection::Incoming> Connection::parse_request(const HeadCheck& head_check) {
  HttpParser parser({options_.max_header_bytes, options_.max_body_bytes});
  BodyBudget::Reservation reservation(bodies_);
  deadline_.expire_after(options_.header_timeout);
  for (;;) {
    const HttpParser::State state = parser.feed(buffer_);
    if (state == HttpParser::State::kFailed) {
      deadline_.expire_never();
      co_return Incoming{{}, error_reply(parser.failure().status, parser.failure().message)};
    }
    if (!reservation.resize(parser.body_bytes())) {
      deadline_.expire_never();
      co_return Incoming{{}, body_budget_error()};
    }
    if (state == HttpParser::State::kDone) break;
    if (state == HttpParser::State::kHead) {
      if (auto response = head_check(parser.head()); response && !parser.complete()) {
        deadline_.expire_never();
        co_return Incoming{{}, std::move(response)};
      }
      if (!bodies_.has_room(parser.announced_body_bytes())) {
        deadline_.expire_never();
        co_return Incoming{{}, body_budget_error()};
      }
      deadline_.expire_after(options_.body_timeout);
      if (parser.head().expects_continue && buffer_.empty() && !parser.complete()) {
        const bool sent = co_await write_all(kContinue);
        if (!sent) co_return Incoming{};
        deadline_.expire_after(options_.body_timeout);
      }
      continue;
    }
    const ReadOutcome more = co_await fill();
    if (more == ReadOutcome::kTimeout) {
      co_return Incoming{{}, error_reply(408, timeout_message(parser.head_complete()))};
    }
    if (more == ReadOutcome::kClosed && stopping_ && parser.head_complete()) {
      deadline_.expire_never();
      co_return Incoming{{}, error_reply(503, "the server is shutting down")};
    }
    if (more == ReadOutcome::kClosed) co_return Incoming{};
  }
  deadline_.expire_never();
  HttpRequest request = parser.take();
  request.body_reservation = std::move(reservation);
  co_return Incoming{std::move(request), {}};
}

asio::awaitable<bool> Connection::write_all(std::string_view bytes) {
  while (!bytes.empty()) {
    error_code failure;
    const size_t count = socket_.write_some(asio::buffer(bytes), failure);
    bytes.remove_prefix(count);
    if (!failure) continue;
    if (!would_block(failure)) {
      peer_gone_ = true;
      co_return false;
    }
    deadline_.expire_after(options_.write_timeout);
    const auto [wait_failure] = co_await socket_.async_wait(tcp::socket::wait_write, kOutcome);
    deadline_.expire_never();
    if (wait_failure || peer_gone_) {
      peer_gone_ = true;
      co_return false;
    }
  }
  co_return true;
}

asio::awaitable<bool> Connection::send(const HttpResponse& response, bool without_body, bool keep_alive, bool http11) {
  std::string bytes;
  bytes.reserve(512 + std::min(response.body.size(), kReadBytes));
  append_head(bytes, response, BodyFraming::kLength, response.body.size(), keep_alive && !stopping_, http11);
  const bool is_large = response.body.size() > kReadBytes;
  if (!without_body && !is_large) bytes += response.body;
  bool sent = co_await write_all(bytes);
  if (sent && !without_body && is_large) sent = co_await write_all(response.body);
  co_return sent;
}

asio::awaitable<bool> Connection::begin_stream(const HttpResponse& head, bool keep_alive, bool http11) {
  chunked_ = http11;
  frame_.clear();
  append_head(frame_, head, http11 ? BodyFraming::kChunked : BodyFraming::kUntilClose, 0,
              keep_alive && http11 && !stopping_, http11);
  const bool sent = co_await write_all(frame_);
  co_return sent;
}

asio::awaitable<bool> Connection::write_stream(std::string& events) {
  frame_.clear();
  if (chunked_) {
    fmt::format_to(std::back_inserter(frame_), "{:x}\r\n", events.size());
    frame_ += events;
    frame_ += "\r\n";
  } else {
    frame_ += events;
  }
  events.clear();
  const bool sent = co_await write_all(frame_);
  co_return sent;
}

asio::awaitable<bool> Connection::end_stream() {
  frame_ = std::string();
  if (!chunked_) co_return true;
  const bool sent = co_await write_all("0\r\n\r\n");
  co_return sent;
}

asio::awaitable<void> Connection::linger() {
  constexpr size_t kMaxDiscarded = 64u << 20;
  error_code ignored;
  socket_.shutdown(tcp::socket::shutdown_send, ignored);
  timed_out_ = false;
  deadline_.expire_after(std::chrono::seconds(2));
  for (size_t discarded = 0; discarded < kMaxDiscarded; discarded += buffer_.size()) {
    buffer_.clear();
    const ReadOutcome more = co_await fill();
    if (more != ReadOutcome::kBytes) break;
  }
  deadline_.expire_never();
  socket_.close(ignored);
}

asio::awaitable<void> Connection::watch(std::function<void()> on_gone) {
  error_code failure;
  while (!failure && buffer_.size() < options_.max_pipelined_bytes) {
    const auto [wait_failure] = co_await socket_.async_wait(tcp::socket::wait_read, kOutcome);
    if (wait_failure) co_return;
    failure = read_available();
    if (would_block(failure)) failure = {};
  }
  if (!failure) {
    // Unread bytes would hide an end of stream; a reset still shows.
    const auto [wait_failure] = co_await socket_.async_wait(tcp::socket::wait_error, kOutcome);
    if (wait_failure) co_return;
  }
  peer_gone_ = true;
  on_gone();
}

}  // namespace millrace::server
