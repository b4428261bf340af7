#include <boost/asio/connect.hpp>
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

/// One try at one link. The sockets are members, so that the deadline can close them.
class Connector {
 public:
  Connector(async::Runtime& runtime, const TcpEndpoint& endpoint, const LinkHello& hello, const TcpLinkOptions& options)
      : endpoint_(endpoint),
        hello_(hello),
        options_(options),
        resolver_(runtime.executor()),
        control_(runtime.executor()),
        data_(runtime.executor()) {}

  [[nodiscard]] asio::awaitable<Attempt> run();
  void cancel() {
    boost::system::error_code ignored;
    resolver_.cancel();
    control_.close(ignored);
    data_.close(ignored);
  }

 private:
  using Endpoints = std::vector<tcp::endpoint>;
  [[nodiscard]] asio::awaitable<Endpoints> resolve();
  [[nodiscard]] asio::awaitable<void> connect(tcp::socket& socket, Lane lane, const Endpoints& endpoints);
  [[nodiscard]] asio::awaitable<void> present(tcp::socket& socket, Lane lane, uint64_t attempt);
  [[nodiscard]] asio::awaitable<std::optional<AttemptFailure>> read_verdict(tcp::socket& socket);

  const TcpEndpoint& endpoint_;
  const LinkHello& hello_;
  const TcpLinkOptions& options_;
  tcp::resolver resolver_;
  tcp::socket control_;
  tcp::socket data_;
};

asio::awaitable<Connector::Endpoints> Connector::resolve() {
  boost::system::error_code not_numeric;
  const auto address = asio::ip::make_address(endpoint_.host, not_numeric);
  if (!not_numeric) co_return Endpoints{{address, endpoint_.port}};
  const auto found =
      co_await resolver_.async_resolve(endpoint_.host, std::to_string(endpoint_.port), asio::use_awaitable);
  Endpoints endpoints;
  for (const auto& each : found) endpoints.push_back(each.endpoint());
  co_return endpoints;
}

asio::awaitable<void> Connector::connect(tcp::socket& socket, Lane lane, const Endpoints& endpoints) {
  std::exception_ptr failure;
  for (const tcp::endpoint& endpoint : endpoints) {
    failure = nullptr;
    try {
      boost::system::error_code ignored;
      socket.close(ignored);
      socket.open(endpoint.protocol());
      tune_socket(socket, lane, options_);
      co_await socket.async_connect(endpoint, asio::use_awaitable);
      co_return;
    } catch (const boost::system::system_error&) {
      failure = std::current_exception();
    }
  }
  if (failure) std::rethrow_exception(failure);
}

asio::awaitable<void> Connector::present(tcp::socket& socket, Lane lane, uint64_t attempt) {
  const auto bytes = encode_hello({hello_, lane, attempt});
  co_await asio::async_write(socket, asio::buffer(bytes), asio::use_awaitable);
}

asio::awaitable<std::optional<AttemptFailure>> Connector::read_verdict(tcp::socket& socket) {
  const HandshakeFrame verdict = co_await read_handshake(socket);
  if (verdict.header.kind == FrameKind::kWelcome) co_return std::nullopt;
  if (verdict.header.kind != FrameKind::kRefusal) {
    co_return AttemptFailure{make_error(ErrorCode::kData, "a {} frame came instead of a welcome",
                                        to_string(verdict.header.kind))};
  }
  const bool try_again = (verdict.header.flags & kFlagTryAgain) != 0;
  co_return AttemptFailure{make_error(ErrorCode::kInvalidArgument, "refused: {}", sanitize_reason(verdict.payload)),
                           try_again};
}

asio::awaitable<Attempt> Connector::run() {
  try {
    const Endpoints endpoints = co_await resolve();
    const uint64_t attempt = random_word();
    co_await connect(control_, Lane::kControl, endpoints);
    co_await present(control_, Lane::kControl, attempt);
    co_await connect(data_, Lane::kData, endpoints);
    co_await present(data_, Lane::kData, attempt);
    auto failure = co_await read_verdict(control_);
    if (!failure) failure = co_await read_verdict(data_);
    if (failure) co_return std::move(*failure);
    co_return LanePair(std::move(control_), std::move(data_));
  } catch (const boost::system::system_error& error) {
    const std::string what = error.code() == asio::error::eof ? "closed the connection" : error.code().message();
    co_return AttemptFailure{Error{ErrorCode::kUnavailable, what}};
  } catch (const ErrorException& error) {
    co_return AttemptFailure{error.error()};
  }
}

}  // namespace

asio::awaitable<Result<std::unique_ptr<LinkSender>>> connect_link(async::Runtime& runtime, TcpLinkGroup& home,
                                                                  TcpEndpoint endpoint, LinkHello hello,
                                                                  TcpLinkOptions options, async::TimePoint deadline) {
  Error last{ErrorCode::kTimeout, "no answer"};
  while (runtime.now() < deadline) {
    Connector connector(runtime, endpoint, hello, options);
    Attempt attempt = AttemptFailure{};
    bool late = false;
    {
      const async::Deadline closing(runtime, deadline, [&connector] { connector.cancel(); });
      attempt = co_await connector.run();
      late = closing.passed();
    }
    if (attempt.has_value()) co_return make_tcp_sender(home, hello, options, std::move(*attempt));
    if (!late) {
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
