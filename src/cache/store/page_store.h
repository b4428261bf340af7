#pragma once

#include <boost/asio/awaitable.hpp>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "async/runtime.h"
#include "base/result.h"
#include "cache/cache_counts.h"
#include "cache/page_key.h"

/// The third tier of the KV cache: pages by content, outside the process. docs/page_store.md holds the contract.
namespace millrace::cache {

/// The properties that make pages of different servers exchangeable. All are bound into every stored page's name and
/// header.
struct StoreIdentity {
  std::string model_fingerprint;
  uint32_t layer_begin = 0;
  uint32_t layer_end = 0;  ///< one past the last
  std::string kv_dtype;
  uint32_t page_size = 0;  ///< tokens
  size_t page_bytes = 0;
  uint32_t head_begin = 0;  ///< KV heads of a tensor-parallel rank
  uint32_t head_end = 0;    ///< one past the last; 0: all heads, of a stage of one rank
  uint32_t window = 0;      ///< of the layers' cache group; 0: the group that keeps all tokens
  friend bool operator==(const StoreIdentity&, const StoreIdentity&) = default;
};

/// A stage's access to stored pages. get, put and exists are called on the Runtime's executor, any number at once; the
/// store bounds what runs. No I/O happens on that thread. They never throw for the environment.
///
/// The buffers belong to the caller and are in use until the awaitable completes: cancelling the waiting coroutine does
/// not end it early. An operation that does not end within a time limit is given up: its I/O goes on in a buffer of the
/// store's own. The destructor answers what is queued with false, and joins the I/O under way within a time limit. It
/// may run while coroutines wait; they must be let resume.
class PageStore {
 public:
  virtual ~PageStore() = default;
  /// Reads a page whole into `into` [page_bytes]. False is a miss: absent, truncated, corrupt, foreign, or the store is
  /// unwell; `into` holds anything then.
  [[nodiscard]] virtual asio::awaitable<bool> get(PageKey key, std::span<std::byte> into) = 0;
  /// Writes `page` [page_bytes]. True also when it was there already. False: refused (full, read-only, dead server, too
  /// much queued).
  [[nodiscard]] virtual asio::awaitable<bool> put(PageKey key, std::span<const std::byte> page) = 0;
  /// Returns whether a get is likely to succeed: the page exists and has the right size. Reads no payload.
  [[nodiscard]] virtual asio::awaitable<bool> exists(PageKey key) = 0;
  /// Ends all operations under way with false, soon. A page whose put is given up may be stored all the same. A store
  /// whose operations always end may ignore it.
  virtual void give_up() {}
  /// Returns the counts; from any thread.
  [[nodiscard]] virtual StoreStats stats() const = 0;
};

/// How long I/O may take before it is given up.
struct StoreTimeLimits {
  std::chrono::milliseconds operation = std::chrono::seconds(30);  ///< of one get, put or exists, with its wait
  std::chrono::milliseconds close = std::chrono::seconds(5);       ///< of the I/O under way when the store is closed
};

struct FileStoreOptions {
  std::string path;        ///< made when absent; may be shared by stages, servers and hosts
  uint64_t max_bytes = 0;  ///< of this identity's pages and abandoned ones, with their headers; at least one page
  int threads = 4;         ///< workers for reads, and as many for writes
  size_t max_queued_puts = 256;
  bool use_io_uring = true;                                     ///< where the kernel allows it
  std::chrono::seconds abandoned_after = std::chrono::days(1);  ///< pages of identities unused for so long make way
  StoreTimeLimits limits;
};

/// The TLS settings of a connection to a server. Files are PEM.
struct TlsOptions {
  bool enabled = false;
  std::string ca_file;           ///< whom to trust; empty: the system's authorities
  std::string certificate_file;  ///< shown to a server that wants one, with the chain behind it; empty: none
  std::string key_file;          ///< of that certificate
  bool verify = true;            ///< the server's certificate and its name; without, anybody may pose as the server
  friend bool operator==(const TlsOptions&, const TlsOptions&) = default;
};

struct RedisStoreOptions {
  std::string host = "127.0.0.1";  ///< a name, an address, or the path of a Unix socket
  uint16_t port = 6379;
  std::string user;      ///< empty: the default user
  std::string password;  ///< empty: none
  TlsOptions tls;
  int db = 0;
  int64_t ttl_s = 0;      ///< of a page since its last use; 0: for ever
  int timeout_ms = 1000;  ///< without progress, after which the server counts as dead
  int threads = 4;        ///< connections for reads, and as many for writes
  size_t max_queued_puts = 256;
  StoreTimeLimits limits;
};

/// Opens a store of pages as files. Blocks while it reads the directory. Has the process ignore SIGXFSZ. Errors:
/// kInvalidArgument for options, kUnavailable for a directory that cannot be made, read, written or locked.
[[nodiscard]] Result<std::unique_ptr<PageStore>> open_file_store(async::Runtime& runtime, StoreIdentity identity,
                                                                 FileStoreOptions options);

/// Opens a store of pages as strings of a Redis or Valkey server. Blocks for one attempt to connect. A server that
/// cannot be reached is retried later. Error: kInvalidArgument when it refuses the password or the database, or its
/// certificate is not accepted.
[[nodiscard]] Result<std::unique_ptr<PageStore>> open_redis_store(async::Runtime& runtime, StoreIdentity identity,
                                                                  RedisStoreOptions options);

}  // namespace millrace::cache
