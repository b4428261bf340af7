#pragma once

#include <sys/socket.h>

#include <boost/asio/ip/tcp.hpp>
#include <chrono>
#include <memory>
#include <mutex>
#include <stop_token>
#include <string>
#include <vector>

#include "base/result.h"

namespace millrace::async {

/// An address with its port, in the form that socket calls take.
struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t size = 0;
  [[nodiscard]] const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
  [[nodiscard]] boost::asio::ip::tcp::endpoint endpoint() const;
};
using SocketAddresses = std::vector<SocketAddress>;

/// Looks up the addresses of one host, anew for each call, with a wait that the caller can end. The system's resolver
/// can be neither interrupted nor limited. So each lookup has a thread of its own that nobody joins. It owns all that
/// it touches and may outlive the NameLookup. Thread-safe.
class NameLookup {
 public:
  /// `flags` go to getaddrinfo(3) when the host is not an address itself.
  NameLookup(std::string host, uint16_t port, int flags = 0) : host_(std::move(host)), port_(port), flags_(flags) {}

  /// Returns at least one address, at once if the host is an address itself. Errors: kTimeout (no answer within
  /// `timeout`; the next call waits for the same one), kAborted (`stop` was requested), kUnavailable (there is no
  /// address, and why).
  [[nodiscard]] Result<SocketAddresses> wait_for(std::chrono::milliseconds timeout, const std::stop_token& stop = {});

 private:
  struct Query;
  [[nodiscard]] std::shared_ptr<Query> join_query();

  const std::string host_;
  const uint16_t port_;
  const int flags_;
  std::mutex mutex_;
  std::shared_ptr<Query> query_;  // under way, or finished and not taken; guarded by mutex_
};

}  // namespace millrace::async
