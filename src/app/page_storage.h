#pragma once

#include <memory>
#include <string>

#include "cache/store/page_store.h"

namespace millrace::app {

/// The page store behind the host tier, as the flags describe it.
struct StorageOptions {
  std::string backend;    ///< file, redis; empty: none
  std::string path;       ///< file: the directory
  double size_gb = 16;    ///< file: what one stage's pages may take
  std::string address;    ///< redis: HOST:PORT or [ADDRESS]:PORT, with TLS rediss:// before; or a Unix socket's path
  cache::TlsOptions tls;  ///< redis: `enabled` follows from the address
  std::string user;
  std::string password;
  int db = 0;
  double ttl_s = 0;  ///< redis: a page's life since its last use; 0: for ever
  friend bool operator==(const StorageOptions&, const StorageOptions&) = default;

  [[nodiscard]] bool enabled() const { return !backend.empty(); }
  [[nodiscard]] bool wants_tls() const;
};

/// How a Redis server is reached. Errors name the flag.
[[nodiscard]] Result<cache::RedisStoreOptions> redis_options(const StorageOptions& options);
/// Opens one stage's store; null when none is wanted. Errors name the flag, or what the directory or server answered.
[[nodiscard]] Result<std::unique_ptr<cache::PageStore>> open_page_store(async::Runtime& runtime,
                                                                        const StorageOptions& options,
                                                                        const cache::StoreIdentity& identity);

}  // namespace millrace::app
