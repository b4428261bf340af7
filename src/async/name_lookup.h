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

/// An address with its port, as the calls of sockets take it.
struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t size = 0;
  [[nodiscard]] const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
  [[nodiscard]] boost::asio::ip::tcp::endpoint endpoint() const;
};
using SocketAddresses = std::vector<SocketAddress>;

/// The addresses of one host, looked up anew whenever they are asked for, without a wait for the system's resolver that
/// the caller cannot end. The resolver can be neither interrupted nor given a limit, so each lookup has a thread of its
/// own, which nobody joins: it owns all that it touches, knows no executor, and may outlive the NameLookup. From any
/// thread.
class NameLookup {
 public:
  /// `flags`: of getaddrinfo(3), for what is no address itself.
  NameLookup(std::string host, uint16_t port, int flags = 0) : host_(std::move(host)), port_(port), flags_(flags) {}

  /// One address at least; at once where the host is an address itself. Errors: kTimeout, no answer has come within
  /// `timeout`, and the next call waits for the same one; kAborted, `stop` was requested; kUnavailable, there is none,
  /// and why.
  [[nodiscard]] Result<SocketAddresses> wait_for(std::chrono::milliseconds timeout, const std::stop_token& stop = {});

 private:
  struct Query;
  [[nodiscard]] std::shared_ptr<Query> join_query();

  const std::string host_;
  const uint16_t port_;
  const int flags_;
  std::mutex mutex_;
  std::shared_ptr<Query> query_;  // under way, or answered and not taken; guarded by mutex_
};

}  // namespace millrace::async
