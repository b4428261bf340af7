#include "app/page_storage.h"

#include <algorithm>
#include <charconv>
#include <cmath>

namespace millrace::app {
namespace {

constexpr std::string_view kPlainScheme = "redis://";
constexpr std::string_view kTlsScheme = "rediss://";

/// Parses PATH, HOST, HOST:PORT, [ADDRESS] or [ADDRESS]:PORT. Returns whether `text` is one of them.
bool parse_address(std::string_view text, cache::RedisStoreOptions& redis) {
  size_t end = text.size();
  if (text.starts_with('[')) {
    end = text.find(']');
    if (end == std::string_view::npos) return false;
    redis.host = text.substr(1, end++ - 1);
  } else {
    if (!text.starts_with('/')) end = std::min(text.find(':'), text.size());
    redis.host = text.substr(0, end);
  }
  if (redis.host.empty()) return false;
  if (end == text.size()) return true;
  const char* const last = text.data() + text.size();
  const auto [stop, failure] = std::from_chars(text.data() + end + 1, last, redis.port);
  return text[end] == ':' && failure == std::errc() && stop == last && redis.port != 0;
}

}  // namespace

bool StorageOptions::wants_tls() const {
  return address.starts_with(kTlsScheme);
}

Result<cache::RedisStoreOptions> redis_options(const StorageOptions& options) {
  cache::RedisStoreOptions redis;
  redis.user = options.user;
  redis.password = options.password;
  redis.db = options.db;
  redis.ttl_s = static_cast<int64_t>(std::ceil(options.ttl_s));  // rounded up: 0 means no limit
  redis.tls = options.tls;
  redis.tls.enabled = options.wants_tls();
  std::string_view address = options.address;
  for (const std::string_view scheme : {kPlainScheme, kTlsScheme}) {
    if (address.starts_with(scheme)) address.remove_prefix(scheme.size());
  }
  if (parse_address(address, redis)) return redis;
  return make_error(ErrorCode::kInvalidArgument,
                    "--hicache-storage-address: '{}' is not HOST:PORT, [ADDRESS]:PORT, either with rediss:// before "
                    "it, nor the path of a socket",
                    options.address);
}

Result<std::unique_ptr<cache::PageStore>> open_page_store(async::Runtime& runtime, const StorageOptions& options,
                                                          const cache::StoreIdentity& identity) {
  if (!options.enabled()) return std::unique_ptr<cache::PageStore>();
  if (options.backend == StoreBackend::kRedis) {
    auto redis = redis_options(options);
    if (redis.has_error()) return redis.error();
    return cache::open_redis_store(runtime, identity, std::move(*redis));
  }
  cache::FileStoreOptions file;
  file.path = options.path;
  file.max_bytes = static_cast<uint64_t>(options.size_gb * 1e9);
  return cache::open_file_store(runtime, identity, file);
}

}  // namespace millrace::app
