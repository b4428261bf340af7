#include "app/flag_types.h"
#include "app/serve_flags.h"

namespace millrace::app {
namespace {

void add_redis_flags(CLI::App& serve, StorageOptions& storage) {
  serve
      .add_option("--hicache-storage-address", storage.address,
                  "Sets the server of redis: HOST:PORT, rediss://HOST:PORT for TLS, or the path of a socket.")
      ->type_name("ADDRESS");
  serve.add_option("--hicache-storage-user", storage.user, "Logs in to redis as this user.")
      ->type_name("NAME")
      ->envname("MILLRACE_STORAGE_USER");
  serve.add_option("--hicache-storage-password", storage.password, "Logs in to redis with this password.")
      ->type_name("TEXT")
      ->envname("MILLRACE_STORAGE_PASSWORD");
  add_number(serve, "--hicache-storage-db", storage.db, {0, 1 << 20}, "Selects the database of redis by its number.");
  add_number(serve, "--hicache-storage-ttl", storage.ttl_s, {0, 1e9},
             "Deletes a page in redis that was unused for this long; 0: no limit.")
      ->type_name("SECONDS");
  serve
      .add_option("--hicache-storage-tls-ca", storage.tls.ca_file,
                  "Trusts the authorities in this file over TLS, in place of the system's.")
      ->type_name("FILE");
  serve
      .add_option("--hicache-storage-tls-cert", storage.tls.certificate_file,
                  "Shows the certificate in this file to the server.")
      ->type_name("FILE");
  serve.add_option("--hicache-storage-tls-key", storage.tls.key_file, "Sets the file of that certificate's key.")
      ->type_name("FILE");
  serve.add_flag_callback(
      "--hicache-storage-tls-insecure", [&storage] { storage.tls.verify = false; },
      "Encrypts without a check of the server's certificate.");
}

void add_store_flags(CLI::App& serve, EngineOptions& engine) {
  StorageOptions& storage = engine.node.storage;
  add_choice(serve, "--hicache-storage-backend", storage.backend,
             "Adds a page store after the host tier: none, file, redis.");
  serve.add_option("--hicache-storage-path", storage.path, "Sets the directory of file, which nodes may share.")
      ->type_name("DIR");
  add_number(serve, "--hicache-storage-size", storage.size_gb, {0.001, 1e6},
             "Limits the pages of each stage in file, in GB.");
  add_choice(serve, "--hicache-storage-prefetch-policy", engine.head.scheduler.prefetch_policy,
             "Sets how long a request waits for stored pages: best_effort (not at all), wait_complete, timeout.");
  add_seconds(serve, "--hicache-prefetch-timeout", engine.head.prefetch_timeout, {0.001, 3600},
              "Ends the wait of the policy timeout.");
  add_redis_flags(serve, storage);
}

}  // namespace

void add_cache_flags(CLI::App& serve, ServeFlags& flags) {
  EngineOptions& engine = flags.engine;
  serve.option_defaults()->group("KV cache");
  add_number(serve, "--page-size", engine.stage.page_size, {1, 4096}, "Sets the tokens per page.");
  add_number(serve, "--max-total-tokens", engine.max_total_tokens, {1, 0x1p40},
             "Sets the tokens that the KV cache holds.")
      ->default_str("by memory");
  add_number(serve, "--mem-fraction-static", engine.stage.memory_fraction, {0.001, 0.99},
             "Gives this part of the memory that is available at start, after weights and scratch, to the KV cache.")
      ->default_str("0.9 on a GPU, 0.5 on the CPU");
  add_number(serve, "--expected-tokens", engine.stage.expected_tokens, {1, 0x1p31},
             "Divides the KV cache between layers with all tokens, a window or a state for sequences of this length.")
      ->default_str("for any length");
  add_number(serve, "--state-snapshot-pages", engine.head.scheduler.snapshot_pages, {0, 1e6},
             "Takes further snapshots of recurrent layers, every N pages of a sequence; 0: none.");
  serve.add_flag_callback(
      "--disable-radix-cache", [&engine] { engine.head.scheduler.share_prefixes = false; },
      "Shares no prefixes between requests.");
  serve.add_flag("--enable-hierarchical-cache", engine.hierarchical_cache,
                 "Adds a host tier, which keeps prefixes in host memory when they leave the device.");
  add_number(serve, "--hicache-ratio", engine.host_cache_ratio, {0.01, 1000}, "Sets the host pages per device page.");
  add_number(serve, "--hicache-size", engine.host_cache_gb, {0, 1e6},
             "Sets the host tier of a node in GB, in place of the ratio.")
      ->default_str("by the ratio");
  add_choice(
      serve, "--hicache-write-policy", engine.head.scheduler.write_policy,
      "Sets when a page is copied to the host: write_through (once it is computed), write_through_selective (once "
      "a second sequence uses it), write_back (when its device page is evicted).");
  add_store_flags(serve, engine);
}

std::string cache_contradiction(const ServeFlags& flags) {
  const EngineOptions& engine = flags.engine;
  const StorageOptions& storage = engine.node.storage;
  if (!engine.head.scheduler.share_prefixes && engine.hierarchical_cache) {
    return "--enable-hierarchical-cache and --disable-radix-cache exclude each other";
  }
  if (storage.enabled() && !engine.hierarchical_cache) {
    return "--hicache-storage-backend needs --enable-hierarchical-cache";
  }
  if (storage.backend == StoreBackend::kFile && storage.path.empty()) {
    return "--hicache-storage-backend file needs --hicache-storage-path DIR";
  }
  if (storage.backend == StoreBackend::kRedis && storage.address.empty()) {
    return "--hicache-storage-backend redis needs --hicache-storage-address HOST:PORT";
  }
  if (storage.backend == StoreBackend::kRedis) {
    if (const auto redis = redis_options(storage); redis.has_error()) return redis.error().message;
  }
  if (storage.tls != cache::TlsOptions{} && !storage.wants_tls()) {
    return "--hicache-storage-tls-… needs --hicache-storage-address rediss://HOST:PORT";
  }
  return {};
}

}  // namespace millrace::app
