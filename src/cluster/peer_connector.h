#pragma once

#include <boost/asio/ip/tcp.hpp>
#include <functional>
#include <string>
#include <vector>

#include "async/name_lookup.h"
#include "async/runtime.h"
#include "async/wait_list.h"
#include "base/result.h"
#include "comm/tcp_link.h"

namespace millrace::cluster {

/// Connects to one process by its name and port, one try per call. Each try looks the name up, since a host may get
/// another address. It begins with another of the addresses than the try before, because one that never answers takes
/// the whole time of a try. Used on one Runtime.
class PeerConnector {
 public:
  /// `on_wait` learns what a try waits for that has taken a second.
  PeerConnector(async::Runtime& runtime, const comm::TcpEndpoint& peer,
                std::function<void(const std::string& what)> on_wait);

  /// Tries once, for at most five seconds of lookup and five of connecting. Errors: kTimeout, kUnavailable (there is no
  /// address, or the connection fails), kAborted (stop() was called).
  [[nodiscard]] asio::awaitable<Result<asio::ip::tcp::socket>> connect();
  /// Ends the try under way and all later ones.
  void stop();

 private:
  [[nodiscard]] asio::awaitable<Result<std::vector<asio::ip::tcp::endpoint>>> look_up();

  async::Runtime& runtime_;
  const std::function<void(const std::string&)> on_wait_;
  async::NameLookup name_;
  async::WaitList stop_signal_;
  asio::ip::tcp::socket* connecting_ = nullptr;
  size_t tries_ = 0;
  bool stopping_ = false;
};

}  // namespace millrace::cluster
