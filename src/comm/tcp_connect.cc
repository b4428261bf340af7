#include <boost/asio/experimental/awaitable_operators.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>
#include <boost/system/system_error.hpp>
#include <random>

#include "base/log.h"
#include "comm/tcp_handshake.h"

namespace millrace::comm {
namespace {

using namespace std::chrono_literals;

constexpr async::Duration kRetryDelay = 50ms;

/// Why an attempt failed, and whether another may succeed.
struct AttemptFailure {
  Error error;
  bool try_again = true;
};
using Attempt = boost::system::result<LanePair, AttemptFailure>;

uint64_t random_word() {
  std::random_device device;
  return (uint64_t{device()} << 32) | device();
}

AttemptFailure as_failure(const std::exception_ptr& thrown) {
  try {
    std::rethrow_exception(thrown);
  } catch (const boost::system::system_error& error) {
    const std::string what = error.code() == asio::error::eof ? "closed the connection" : error.code().message();
    return {Error{ErrorCode::kUnavailable, what}};
  } catch (const ErrorException& error) {
    return {error.error()};
  }
}

/// One attempt to connect one link. The sockets are members, so that the deadline can close them.
class Connector {
 public:
  Connector(async::Runtime& runtime, const tcp::endpoint& endpoint, const LinkHello& hello,
            const TcpLinkOptions& options)
      : endpoint_(endpoint),
        hello_(hello),
        options_(options),
        control_(runtime.executor()),
        data_(runtime.executor()) {}

  [[nodiscard]] asio::awaitable<Attempt> run();
  void cancel() {
    boost::system::error_code ignored;
    control_.close(ignored);
    data_.close(ignored);
  }

 private:
  [[nodiscard]] asio::awaitable<void> connect();
  [[nodiscard]] asio::awaitable<void> present(tcp::socket& socket, Lane lane, uint64_t attempt);
  [[nodiscard]] asio::awaitable<void> hear_verdict(tcp::socket& socket);
  [[nodiscard]] asio::awaitable<std::optional<AttemptFailure>> read_verdict(tcp::socket& socket);

  const tcp::endpoint endpoint_;
  const LinkHello& hello_;
  const TcpLinkOptions& options_;
  tcp::socket control_;
  tcp::socket data_;
  std::optional<AttemptFailure> failure_;  // the first that either lane met with
};

/// Connects both lanes and presents the hello on them.
asio::awaitable<void> Connector::connect() {
  const uint64_t attempt = random_word();
  co_await present(control_, Lane::kControl, attempt);
  co_await present(data_, Lane::kData, attempt);
}

asio::awaitable<void> Connector::present(tcp::socket& socket, Lane lane, uint64_t attempt) {
  socket.open(endpoint_.protocol());
  tune_socket(socket, lane, options_);
  co_await socket.async_connect(endpoint_, asio::use_awaitable);
  const auto bytes = encode_hello({hello_, lane, attempt});
  co_await asio::async_write(socket, asio::buffer(bytes), asio::use_awaitable);
}

asio::awaitable<std::optional<AttemptFailure>> Connector::read_verdict(tcp::socket& socket) {
  const HandshakeFrame verdict = co_await read_handshake(socket);
  if (verdict.header.kind == FrameKind::kWelcome) co_return std::nullopt;
  if (verdict.header.kind != FrameKind::kRefusal) {
    co_return AttemptFailure{
        make_error(ErrorCode::kData, "found a {} frame, wanted a welcome", to_string(verdict.header.kind))};
  }
  const bool try_again = (verdict.header.flags & kFlagTryAgain) != 0;
  co_return AttemptFailure{make_error(ErrorCode::kInvalidArgument, "refused: {}", sanitize_reason(verdict.payload)),
                           try_again};
}

/// Reads the peer's answer on one lane. A refused or lost lane ends the attempt on both, since the listener may hold
/// the other and wait for this one.
asio::awaitable<void> Connector::hear_verdict(tcp::socket& socket) {
  std::optional<AttemptFailure> failure;
  try {
    failure = co_await read_verdict(socket);
  } catch (...) {
    failure = as_failure(std::current_exception());
  }
  if (!failure || failure_) co_return;
  failure_ = std::move(failure);
  cancel();
}

asio::awaitable<Attempt> Connector::run() {
  using asio::experimental::awaitable_operators::operator&&;
  try {
    co_await connect();
    co_await (hear_verdict(control_) && hear_verdict(data_));
    if (!failure_) co_return LanePair(std::move(control_), std::move(data_));
  } catch (...) {
    failure_ = as_failure(std::current_exception());
  }
  co_return std::move(*failure_);
}

}  // namespace

asio::awaitable<Result<std::unique_ptr<LinkSender>>> connect_link(async::Runtime& runtime, TcpLinkGroup& group,
                                                                  TcpEndpoint endpoint, LinkHello hello,
                                                                  TcpLinkOptions options, async::TimePoint deadline) {
  auto lanes = co_await connect_lanes(runtime, std::move(endpoint), hello, options, deadline);
  if (lanes.has_error()) co_return lanes.error();
  co_return make_tcp_sender(group, hello, options, std::move(*lanes));
}

asio::awaitable<Result<LanePair>> connect_lanes(async::Runtime& runtime, TcpEndpoint endpoint, LinkHello hello,
                                                TcpLinkOptions options, async::TimePoint deadline) {
  boost::system::error_code no_address;
  const auto address = asio::ip::make_address(endpoint.host, no_address);
  if (no_address) {
    co_return make_error(ErrorCode::kInvalidArgument, "link {} with {}: '{}' is no address", link_name(hello),
                         endpoint.to_string(), endpoint.host);
  }
  Error last{ErrorCode::kTimeout, "no answer"};
  while (runtime.now() < deadline) {
    Connector connector(runtime, {address, endpoint.port}, hello, options);
    Attempt attempt = AttemptFailure{};
    bool deadline_passed = false;
    {
      const async::Deadline closing(runtime, deadline, [&connector] { connector.cancel(); });
      attempt = co_await connector.run();
      deadline_passed = closing.passed();
    }
    if (attempt.has_value()) co_return std::move(*attempt);
    if (!deadline_passed) {
      const bool news = last.message != attempt.error().error.message;
      last = attempt.error().error;
      if (news && last.code == ErrorCode::kInvalidArgument) {
        log::warn("link {} with {} is {}", link_name(hello), endpoint.to_string(), last.message);
      }
    }
    if (!attempt.error().try_again) {
      co_return make_error(last.code, "link {} with {}: {}", link_name(hello), endpoint.to_string(), last.message);
    }
    co_await async::sleep_for(runtime, std::min(kRetryDelay, std::max(async::Duration(1), deadline - runtime.now())));
  }
  co_return make_error(ErrorCode::kTimeout, "link {} with {}: {}", link_name(hello), endpoint.to_string(),
                       last.message);
}

}  // namespace millrace::comm
