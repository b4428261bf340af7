#pragma once

#include <memory>
#include <string>

#include "base/enum_names.h"
#include "cache/store/page_store.h"

namespace millrace::app {

enum class StoreBackend : uint8_t { kNone, kFile, kRedis };

inline constexpr EnumName<StoreBackend> kStoreBackendNames[] = {
    {StoreBackend::kNone, "none"},
    {StoreBackend::kFile, "file"},
    {StoreBackend::kRedis, "redis"},
};
constexpr std::span<const EnumName<StoreBackend>> enum_names(StoreBackend) {
  return kStoreBackendNames;
}

/// The page store after the host tier, as the flags describe it.
struct StorageOptions {
  StoreBackend backend = StoreBackend::kNone;
  std::string path;       ///< file: the directory
  double size_gb = 16;    ///< file: the limit for the pages of one stage
  std::string address;    ///< redis: HOST:PORT or [ADDRESS]:PORT, rediss:// before it for TLS; or a Unix socket's path
  cache::TlsOptions tls;  ///< redis: `enabled` follows from the address
  std::string user;
  std::string password;
  int db = 0;
  double ttl_s = 0;  ///< redis: seconds that an unused page lives; 0: no limit
  friend bool operator==(const StorageOptions&, const StorageOptions&) = default;

  [[nodiscard]] bool enabled() const { return backend != StoreBackend::kNone; }
  [[nodiscard]] bool wants_tls() const;
};

/// Returns how a Redis server is reached. Errors name the flag.
[[nodiscard]] Result<cache::RedisStoreOptions> redis_options(const StorageOptions& options);
/// Opens one stage's store, or returns null when none is wanted. Errors name the flag, or what the directory or server
/// answered.
[[nodiscard]] Result<std::unique_ptr<cache::PageStore>> open_page_store(async::Runtime& runtime,
                                                                        const StorageOptions& options,
                                                                        const cache::StoreIdentity& identity);

}  // namespace millrace::app
