#pragma once

#include <chrono>
#include <memory>
#include <stop_token>

#include "base/result.h"
#include "server/options.h"
#include "server/service.h"

namespace millrace::server {

/// The HTTP server of the OpenAI-compatible API: listens on one address, on a thread of its own. Built, started and
/// stopped by main, from any one thread.
class Server {
 public:
  Server(ServerOptions options, Service service);
  /// Stops without draining if still running.
  ~Server();
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  /// Listens and serves from now on; returns the port. Called once. Errors: kUnavailable (the address cannot be bound,
  /// e.g. the port is in use), kInvalidArgument (the host is not an address and cannot be looked up), kAborted (`stop`
  /// was requested while it was looked up).
  [[nodiscard]] Result<uint16_t> start(const std::stop_token& stop = {});
  /// Stops accepting, lets running requests end for `drain_timeout`, then ends them with an error, then cuts them off.
  /// Blocks until everything is down. Must not be called on the server's own thread. Idempotent.
  void stop(std::chrono::milliseconds drain_timeout);

 private:
  struct Parts;
  std::unique_ptr<Parts> parts_;
};

}  // namespace millrace::server
