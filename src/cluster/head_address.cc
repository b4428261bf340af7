#include "cluster/head_address.h"

#include <condition_variable>
#include <optional>

#include "async/name_lookup.h"
#include "base/log.h"

namespace millrace::cluster {
namespace {

using namespace std::chrono_literals;
using asio::ip::tcp;
using boost::system::error_code;
using Clock = std::chrono::steady_clock;
using AcceptorPtr = std::unique_ptr<tcp::acceptor>;

constexpr auto kLookupTimeout = 60s;
constexpr auto kConnectRetry = 500ms;
/// Interval at which the log repeats what is missing.
constexpr auto kConnectReminder = 5s;
/// Interval between looks at a slow resolver.
constexpr auto kLookupWait = 1s;

void pause(const std::stop_token& stop, Clock::duration duration) {
  std::mutex mutex;
  std::condition_variable_any never;
  std::unique_lock lock(mutex);
  (void)never.wait_for(lock, stop, duration, [] { return false; });
}

bool is_address(const std::string& host) {
  error_code failure;
  (void)asio::ip::make_address(host, failure);
  return !failure;
}

Result<AcceptorPtr> listen(const asio::any_io_executor& executor, const tcp::endpoint& endpoint) {
  error_code failure;
  auto acceptor = std::make_unique<tcp::acceptor>(executor);
  acceptor->open(endpoint.protocol(), failure);
  if (!failure) acceptor->set_option(asio::socket_base::reuse_address(true), failure);
  if (!failure) acceptor->bind(endpoint, failure);
  if (!failure) acceptor->listen(asio::socket_base::max_listen_connections, failure);
  if (!failure) return acceptor;
  if (failure == asio::error::address_in_use) {
    return make_error(ErrorCode::kConflict, "another head, or another program, listens there already");
  }
  if (failure != boost::system::errc::address_not_available) {
    return Error{ErrorCode::kInvalidArgument, failure.message()};
  }
  return make_error(ErrorCode::kUnavailable, "{} is no address of this host; node 0 has to run on the one that has it",
                    endpoint.address().to_string());
}

/// Tries to listen once. The errors kUnavailable and kTimeout may pass.
Result<AcceptorPtr> try_once(const asio::any_io_executor& executor, async::NameLookup& name,
                             const std::stop_token& stop) {
  const auto found = name.wait_for(kLookupWait, stop);
  if (found.has_error()) return found.error();
  std::optional<Error> problem;
  for (const async::SocketAddress& address : *found) {
    auto listening = listen(executor, address.endpoint());
    // A taken address means that a head is there; at another address this one would be a second head.
    if (listening.has_value() || listening.error().code == ErrorCode::kConflict) return listening;
    if (!problem || listening.error().code == ErrorCode::kUnavailable) problem = listening.error();
  }
  return *problem;
}

Error address_error(const comm::TcpEndpoint& address, ErrorCode code, const std::string& problem) {
  return make_error(code, "--dist-init-addr {}: {}", address.to_string(), problem);
}

void warn_of_loopback(const comm::TcpEndpoint& address, const tcp::acceptor& acceptor) {
  const asio::ip::address found = acceptor.local_endpoint().address();
  if (!found.is_loopback() || is_address(address.host) || address.host == "localhost") return;
  log::warn("--dist-init-addr {} is {} on this host: nodes on other hosts will not get through to it",
            address.to_string(), found.to_string());
}

}  // namespace

Result<AcceptorPtr> listen_as_head(const asio::any_io_executor& executor, const comm::TcpEndpoint& address,
                                   const std::stop_token& stop) {
  async::NameLookup name(address.host, address.port);
  const auto timeout = is_address(address.host) ? 0s : kLookupTimeout;
  const Clock::time_point deadline = Clock::now() + timeout;
  Clock::time_point reminder;
  std::string logged;
  for (;;) {
    auto listening = try_once(executor, name, stop);
    if (listening.has_value()) {
      warn_of_loopback(address, **listening);
      return listening;
    }
    const auto& [code, problem] = listening.error();
    if (stop.stop_requested()) return address_error(address, ErrorCode::kAborted, problem);
    const bool may_pass = code == ErrorCode::kUnavailable || code == ErrorCode::kTimeout;
    const Clock::time_point now = Clock::now();
    if (!may_pass || timeout == 0s) return address_error(address, code, problem);
    if (now >= deadline) return address_error(address, code, fmt::format("{}; tried for {} s", problem, timeout / 1s));
    if (problem != logged || now >= reminder) {
      log::warn("--dist-init-addr {}: {}; trying again for {} s", address.to_string(), problem,
                std::chrono::ceil<std::chrono::seconds>(deadline - now) / 1s);
      logged = problem;
      reminder = now + kConnectReminder;
    }
    if (code != ErrorCode::kTimeout) pause(stop, kConnectRetry);
  }
}

}  // namespace millrace::cluster
