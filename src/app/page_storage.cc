#include "app/page_storage.h"

#include <charconv>

namespace millrace::app {
namespace {

constexpr std::string_view kPlainScheme = "redis://";
constexpr std::string_view kTlsScheme = "rediss://";

Result<std::unique_ptr<cache::PageStore>> open_redis(async::Runtime& runtime, const StorageOptions& options,
                                                     const cache::StoreIdentity& identity) {
  cache::RedisStoreOptions redis;
  redis.user = options.user;
  redis.password = options.password;
  redis.db = options.db;
  redis.ttl_s = static_cast<int64_t>(options.ttl_s);
  redis.tls = options.tls;
  redis.tls.enabled = options.wants_tls();
  std::string_view address = options.address;
  for (const std::string_view scheme : {kPlainScheme, kTlsScheme}) {
    if (address.starts_with(scheme)) address.remove_prefix(scheme.size());
  }
  redis.host = address;
  const size_t colon = address.rfind(':');
  if (!address.starts_with('/') && colon != std::string_view::npos) {
    const char* const end = address.data() + address.size();
    const auto [stop, failure] = std::from_chars(address.data() + colon + 1, end, redis.port);
    if (failure != std::errc() || stop != end || redis.port == 0) {
      return make_error(ErrorCode::kInvalidArgument,
                        "--hicache-storage-address: '{}' is not HOST:PORT or rediss://HOST:PORT", options.address);
    }
    redis.host = address.substr(0, colon);
  }
  return cache::open_redis_store(runtime, identity, redis);
}

}  // namespace

bool StorageOptions::wants_tls() const {
  return address.starts_with(kTlsScheme);
}

Result<std::unique_ptr<cache::PageStore>> open_page_store(async::Runtime& runtime, const StorageOptions& options,
                                                          const cache::StoreIdentity& identity) {
  if (!options.enabled()) return std::unique_ptr<cache::PageStore>();
  if (options.backend == "redis") return open_redis(runtime, options, identity);
  cache::FileStoreOptions file;
  file.path = options.path;
  file.max_bytes = static_cast<uint64_t>(options.size_gb * 1e9);
  return cache::open_file_store(runtime, identity, file);
}

}  // namespace millrace::app
