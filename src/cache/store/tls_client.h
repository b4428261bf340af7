#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "cache/store/page_store.h"

namespace millrace::cache {

/// The client's side of TLS (1.2 or later) over a connected non-blocking socket, which stays its owner's. It is
/// asio::ssl's stream, run synchronously: a store's worker blocks, and bounds each wait for the socket by the function
/// that it is given, which throws when it has waited too long. Owned by a RedisSocket, on its thread.
///
/// Everything throws ErrorException: kInvalidArgument for files that cannot be used, a certificate of the server's that
/// is not trusted or not of its name, or a server that refuses this client; kData when the server does not speak TLS;
/// kUnavailable when the connection fails.
class TlsClient {
 public:
  /// Blocks until the socket is ready for `events` of poll(2); `what` names the step for an error message.
  using Wait = std::function<void(short events, const char* what)>;

  /// Agrees with the server `host`, a name or an address.
  TlsClient(int socket, const std::string& host, const TlsOptions& options, Wait wait);
  ~TlsClient();
  TlsClient(const TlsClient&) = delete;
  TlsClient& operator=(const TlsClient&) = delete;

  /// Returns at least one byte and at most `into.size()`; 0 when the server has closed the connection.
  [[nodiscard]] size_t read(std::span<std::byte> into);
  void write(std::span<const std::byte> bytes);

  /// What one call of write() encrypts best.
  static constexpr size_t kRecordBytes = 16 * 1024;

 private:
  class Session;
  std::unique_ptr<Session> session_;
};

}  // namespace millrace::cache
