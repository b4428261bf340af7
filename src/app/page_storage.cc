#include "app/page_storage.h"

#include <charconv>

namespace millrace::app {
namespace {

Result<std::unique_ptr<cache::PageStore>> open_redis(async::Runtime& runtime, const StorageOptions& options,
                                                     const cache::StoreIdentity& identity) {
  cache::RedisStoreOptions redis;
  redis.user = options.user;
  redis.password = options.password;
  redis.db = options.db;
  redis.ttl_s = static_cast<int64_t>(options.ttl_s);
  redis.host = options.address;
  const size_t colon = options.address.rfind(':');
  if (!options.address.starts_with('/') && colon != std::string::npos) {
    const char* const end = options.address.data() + options.address.size();
    const auto [stop, failure] = std::from_chars(options.address.data() + colon + 1, end, redis.port);
    if (failure != std::errc() || stop != end || redis.port == 0) {
      return make_error(ErrorCode::kInvalidArgument, "--hicache-storage-address: '{}' is not HOST:PORT",
                        options.address);
    }
    redis.host = options.address.substr(0, colon);
  }
  return cache::open_redis_store(runtime, identity, redis);
}

}  // namespace

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
