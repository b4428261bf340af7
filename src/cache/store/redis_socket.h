#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <memory>
#include <span>

#include "async/name_lookup.h"
#include "cache/store/page_store.h"
#include "cache/store/tls_client.h"

namespace millrace::cache {

/// The bytes of a connection to a Redis server, over TCP, a Unix socket or TLS. Used on one thread, which it blocks,
/// but for no longer than `timeout_ms` without progress. Everything throws ErrorException: kUnavailable when the
/// connection fails or ends, kTimeout when nothing moves, or as TlsClient says.
class RedisSocket {
 public:
  /// Connects; `host` looks up the host of the options, unless that is the path of a Unix socket.
  RedisSocket(const RedisStoreOptions& options, async::NameLookup& host);
  ~RedisSocket();
  RedisSocket(const RedisSocket&) = delete;
  RedisSocket& operator=(const RedisSocket&) = delete;

  /// Sends all of `pieces`, which it uses up.
  void send(std::span<iovec> pieces);
  /// Receives at least one byte of what the server sends.
  [[nodiscard]] size_t receive_some(std::span<std::byte> into);

 private:
  void open(const RedisStoreOptions& options, async::NameLookup& host);
  void connect_to(const struct sockaddr* address, unsigned length, int family);
  void wait_for(short events, const char* what) const;
  void send_plain(std::span<iovec> pieces);
  void send_encrypted(std::span<const iovec> pieces);

  const int timeout_ms_;
  int socket_ = -1;
  std::unique_ptr<TlsClient> tls_;
};

}  // namespace millrace::cache
