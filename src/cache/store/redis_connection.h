#pragma once

#include <array>
#include <cstddef>
#include <deque>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cache/store/page_store.h"
#include "cache/store/redis_socket.h"

namespace millrace::cache {

/// A server's answer to one command.
struct RedisReply {
  enum class Kind { kStatus, kError, kInteger, kBulk, kNil };
  Kind kind = Kind::kNil;
  std::string text;  ///< of a status or an error
  int64_t integer = 0;
  uint64_t bulk_bytes = 0;  ///< how long the string is, however much of it there was room for
};

/// One connection that speaks the Redis protocol (RESP 2): commands are queued, sent together, and answered in order.
/// Payloads go from and to the caller's memory. Used on one thread, which it blocks as RedisSocket does.
///
/// Everything throws ErrorException: as RedisSocket says, kData when the server does not speak the protocol,
/// kInvalidArgument when it refuses the password or the database. The connection is of no use afterwards.
class RedisConnection {
 public:
  /// Connects, authenticates, selects the database and waits until the server is ready.
  RedisConnection(const RedisStoreOptions& options, async::NameLookup& host);

  void queue(std::initializer_list<std::string_view> words);
  /// Queues a command with `value`, the parts of one string, after its first two words. The parts must live until
  /// send() has returned.
  void queue_value(std::initializer_list<std::string_view> words, std::array<std::span<const std::byte>, 2> value);
  void send();
  /// Returns the next answer. A string's bytes fill `into` one after another; what has no room is dropped.
  [[nodiscard]] RedisReply receive(std::array<std::span<std::byte>, 2> into = {});

 private:
  void handshake(const RedisStoreOptions& options);
  void fill();
  [[nodiscard]] std::string read_line();
  void read_bulk(uint64_t bytes, std::array<std::span<std::byte>, 2> into);
  void take(std::span<std::byte> into);
  void drop(uint64_t bytes);
  [[nodiscard]] size_t buffered() const { return end_ - begin_; }

  RedisSocket socket_;
  std::deque<std::string> texts_;  // what pieces_ of the queued commands point to, besides payloads
  std::vector<iovec> pieces_;
  std::vector<std::byte> buffer_;
  size_t begin_ = 0;
  size_t end_ = 0;
};

/// Returns "redis://host:port/db", or "rediss://…" with TLS, for messages; without the password.
[[nodiscard]] std::string redis_name(const RedisStoreOptions& options);

}  // namespace millrace::cache
