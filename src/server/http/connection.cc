#include "server/http/connection.h"

#include <fmt/format.h>

#include <netinet/tcp.h>
#include <sys/socket.h>

#include <array>
#include <boost/asio/as_tuple.hpp>
#include <boost/asio/buffer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/beast/http/serializer.hpp>
#include <boost/beast/http/write.hpp>

#include "server/http/http_parser.h"
#include "server/http/response_message.h"

namespace millrace::server {
namespace {

namespace http = boost::beast::http;
using asio::ip::tcp;
using boost::system::error_code;
constexpr auto kOutcome = asio::as_tuple(asio::use_awaitable);
constexpr size_t kReadBytes = 16u << 10;
constexpr std::string_view kContinue = "HTTP/1.1 100 Continue\r\n\r\n";
constexpr std::string_view kLastChunk = "0\r\n\r\n";

/// Time between the probes to a client that sends nothing more, and how many of them it may leave unanswered.
constexpr int kProbeSeconds = 5;
constexpr int kMaxLostProbes = 3;

bool would_block(const error_code& failure) {
  return failure == asio::error::would_block || failure == asio::error::try_again;
}

}  // namespace

Connection::Connection(async::Runtime& runtime, tcp::socket socket, const HttpOptions& options, BodyBudget& bodies)
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

asio::awaitable<Connection::Incoming> Connection::read_request(HttpHandler& handler) {
  if (buffer_.empty()) buffer_ = std::string();
  reading_ = true;
  timed_out_ = false;
  // A request that is not read whole is answered so.
  keep_alive_ = false;
  http11_ = true;
  is_head_ = false;
  has_answered_ = false;
  // The parser comes to life only now: most connections are idle most of the time.
  Incoming incoming;
  const ReadOutcome first = co_await wait_for_first_byte();
  if (first == ReadOutcome::kBytes) incoming = co_await parse_request(handler);
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
  // The block is on the stack, so that a connection keeps no more memory than it has read.
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

HttpError Connection::timeout_error(bool in_body) const {
  const std::chrono::duration<double> limit = in_body ? options_.body_timeout : options_.header_timeout;
  return {408, fmt::format("the request's {0} did not arrive within {1} s (--{0}-timeout)", in_body ? "body" : "header",
                           limit.count())};
}

HttpError Connection::body_budget_error() const {
  return {503, fmt::format("request bodies take {} of {} bytes: there is no room for this one (--max-bodies-mib)",
                           bodies_.used_bytes(), bodies_.limit())};
}

asio::awaitable<Connection::Incoming> Connection::parse_request(HttpHandler& handler) {
  HttpParser parser({options_.max_header_bytes, options_.max_body_bytes});
  BodyBudget::Reservation reservation(bodies_);
  const auto refuse = [&](const HttpError& error) {
    deadline_.expire_never();
    return Incoming{{}, handler.make_error(error, parser.head_complete() ? &parser.head() : nullptr)};
  };
  deadline_.expire_after(options_.header_timeout);
  for (;;) {
    const HttpParser::State state = parser.feed(buffer_);
    if (state == HttpParser::State::kFailed) co_return refuse(parser.failure());
    if (!reservation.resize(parser.body_bytes())) co_return refuse(body_budget_error());
    if (state == HttpParser::State::kDone) break;
    if (state == HttpParser::State::kHead) {
      if (auto response = handler.check_head(parser.head()); response && !parser.complete()) {
        deadline_.expire_never();
        co_return Incoming{{}, std::move(response)};
      }
      if (!bodies_.has_room(parser.announced_body_bytes())) co_return refuse(body_budget_error());
      deadline_.expire_after(options_.body_timeout);
      if (parser.head().expects_continue && buffer_.empty() && !parser.complete()) {
        const bool sent = co_await write_bytes(asio::buffer(kContinue));
        if (!sent) co_return Incoming{};
        deadline_.expire_after(options_.body_timeout);
      }
      continue;
    }
    const ReadOutcome more = co_await fill();
    if (more == ReadOutcome::kTimeout) co_return refuse(timeout_error(parser.head_complete()));
    if (more == ReadOutcome::kClosed && stopping_ && parser.head_complete()) {
      co_return refuse({503, "the server is shutting down"});
    }
    if (more == ReadOutcome::kClosed) co_return Incoming{};
  }
  deadline_.expire_never();
  HttpRequest request = parser.take();
  request.body_reservation = std::move(reservation);
  keep_alive_ = request.keep_alive;
  http11_ = request.http11;
  is_head_ = request.method == Method::kHead;
  co_return Incoming{std::move(request), {}};
}

asio::awaitable<bool> Connection::wait_for_room() {
  deadline_.expire_after(options_.write_timeout);
  const auto [failure] = co_await socket_.async_wait(tcp::socket::wait_write, kOutcome);
  deadline_.expire_never();
  if (failure) peer_gone_ = true;
  co_return !peer_gone_;
}

template <class WriteSome>
asio::awaitable<bool> Connection::write_all(WriteSome write_some) {
  for (;;) {
    error_code failure;
    const bool is_done = write_some(failure);
    if (!failure && is_done) co_return true;
    if (!failure) continue;
    bool goes_on = would_block(failure);
    if (goes_on) goes_on = co_await wait_for_room();
    if (!goes_on) {
      peer_gone_ = true;
      co_return false;
    }
  }
}

asio::awaitable<bool> Connection::write_bytes(asio::const_buffer bytes) {
  return write_all([this, bytes](error_code& failure) mutable {
    bytes += socket_.write_some(bytes, failure);
    return bytes.size() == 0;
  });
}

asio::awaitable<bool> Connection::write_head(const HttpResponse& response, BodyFraming framing) {
  has_answered_ = true;
  const ResponseHead head = make_head(response, framing, {keep_alive_ && !stopping_, http11_});
  http::response_serializer<http::empty_body> serializer(head);
  serializer.split(true);  // the end of a chunked body comes later
  const bool sent = co_await write_all([&](error_code& failure) {
    http::write_some(socket_, serializer, failure);
    return serializer.is_header_done();
  });
  co_return sent;
}

asio::awaitable<bool> Connection::send(const HttpResponse& response) {
  bool sent = false;
  if (is_head_ || response.status == 204) {
    sent = co_await write_head(response, BodyFraming::kLength);
    co_return sent;
  }
  has_answered_ = true;
  const ResponseMessage message = make_message(response, {keep_alive_ && !stopping_, http11_});
  http::response_serializer<ResponseMessage::body_type> serializer(message);
  sent = co_await write_all([&](error_code& failure) {
    http::write_some(socket_, serializer, failure);
    return serializer.is_done();
  });
  co_return sent;
}

void Connection::send_without_waiting(const HttpResponse& response) {
  error_code ignored;
  http::write(socket_, make_message(response, {}), ignored);
  socket_.shutdown(tcp::socket::shutdown_send, ignored);
}

asio::awaitable<bool> Connection::begin_stream(const HttpResponse& head) {
  chunked_ = http11_;
  keep_alive_ = keep_alive_ && http11_;
  return write_head(head, chunked_ ? BodyFraming::kChunked : BodyFraming::kUntilClose);
}

asio::awaitable<bool> Connection::write_stream(std::string& events) {
  // The chunk is framed in place: Beast's make_chunk, whose parts are buffers of their own, takes a sixth more
  // instructions per streamed event (bench/results/2026-11-26-front.md).
  if (chunked_) {
    events.insert(0, fmt::format("{:x}\r\n", events.size()));
    events += "\r\n";
  }
  const bool sent = co_await write_bytes(asio::buffer(events));
  events.clear();
  co_return sent;
}

asio::awaitable<bool> Connection::end_stream() {
  if (!chunked_) co_return true;
  const bool sent = co_await write_bytes(asio::buffer(kLastChunk));
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

error_code Connection::probe_half_closed() {
  error_code failure;
  for (const auto& [option, value] :
       {std::pair{TCP_KEEPIDLE, kProbeSeconds}, {TCP_KEEPINTVL, kProbeSeconds}, {TCP_KEEPCNT, kMaxLostProbes}}) {
    (void)::setsockopt(socket_.native_handle(), IPPROTO_TCP, option, &value, sizeof value);
  }
  // A client that has closed the whole connection resets it when bytes arrive. An answer under way provokes that too.
  if (!http11_ || has_answered_) return failure;
  const size_t sent = socket_.write_some(asio::buffer(kContinue), failure);
  if (would_block(failure)) return {};
  if (!failure && sent < kContinue.size()) failure = asio::error::eof;
  return failure;
}

asio::awaitable<void> Connection::watch(std::function<void()> on_gone, std::function<void()> on_half_closed) {
  error_code failure;
  while (!failure && buffer_.size() < options_.max_pipelined_bytes) {
    const auto [wait_failure] = co_await socket_.async_wait(tcp::socket::wait_read, kOutcome);
    if (wait_failure) co_return;
    failure = read_available();
    if (would_block(failure)) failure = {};
  }
  if (failure == asio::error::eof) {
    failure = probe_half_closed();
    if (!failure && has_answered_ && on_half_closed) on_half_closed();
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
