#include <sys/un.h>

#include <condition_variable>
#include <optional>

#include "base/log.h"
#include "cache/store/queued_store.h"
#include "cache/store/redis_connection.h"
#include "cache/store/store_log.h"

namespace millrace::cache {
namespace {

using Clock = std::chrono::steady_clock;
using namespace std::chrono_literals;

constexpr Clock::duration kFirstRetry = 100ms;
constexpr Clock::duration kMaxRetry = 5s;
/// A server that dies again sooner than this after it came back is retried as late as before.
constexpr Clock::duration kProbation = 10s;
/// Bytes that one worker asks for at once: the server holds as much for its connection.
constexpr size_t kBatchBytes = size_t{16} << 20;
constexpr size_t kMaxBatch = 64;
constexpr int kMaxThreads = 256;

/// The Redis store: workers, each with a connection of its own, serve the queues in batches: the commands of a batch
/// are sent together. When the server does not answer, operations fail at once until one more thread has reached it
/// again.
class RedisStore final : public QueuedStore {
 public:
  RedisStore(async::Runtime& runtime, const StoreIdentity& identity, const RedisStoreOptions& options)
      : QueuedStore(runtime, identity, options.max_queued_puts, options.limits),
        options_(options),
        host_(options.host, options.port),
        name_(redis_name(options)),
        prefix_(fmt::format("millrace:{}:", hash_of(identity).hex())),
        ttl_(std::to_string(options.ttl_s)),
        batch_(std::clamp<size_t>(kBatchBytes / format_.record_bytes(), 1, kMaxBatch)) {}

  /// Tries the server once, then starts the threads.
  [[nodiscard]] Result<void> start();

 private:
  using Batch = std::vector<StoreOpPtr>;
  [[nodiscard]] std::string name() const override { return name_; }
  void stop_keepers() override;
  void serve(StoreQueue& queue);
  void carry_out(std::unique_ptr<RedisConnection>& connection, Batch& batch);
  void read(RedisConnection& connection, Batch& batch);
  void write(RedisConnection& connection, Batch& batch);
  [[nodiscard]] bool judge(StoreOp& op, const RedisReply& reply, const PageHeader& header, bool& is_bad);
  void remove(RedisConnection& connection, const Batch& bad);
  void refused(const char* command, const RedisReply& reply);
  void fail_all(Batch& batch);
  void trip(const Error& error);
  void recover();
  [[nodiscard]] std::string key_of(const PageKey& key) const { return prefix_ + key.hex(); }

  const RedisStoreOptions options_;
  async::NameLookup host_;
  const std::string name_;
  const std::string prefix_;
  const std::string ttl_;
  const size_t batch_;

  std::mutex mutex_;  // of what follows; unavailable_ is only written with it held
  std::condition_variable change_;
  bool closing_ = false;
  Clock::duration retry_ = kFirstRetry;
  Clock::time_point tripped_at_;
  Clock::time_point recovered_at_;
};

Result<void> RedisStore::start() {
  try {
    const RedisConnection probe(options_, host_);
    log::info("page store {}: connected; {} connections for reads, as many for writes, keys {}*", name_,
              options_.threads, prefix_);
  } catch (const ErrorException& failure) {
    if (failure.error().code == ErrorCode::kInvalidArgument) {
      return make_error(ErrorCode::kInvalidArgument, "page store {}: {}", name_, failure.what());
    }
    trip(failure.error());
  }
  start_keeper("store recovery", [this] { recover(); });
  for (int i = 0; i < options_.threads; ++i) {
    start_worker("store reads", [this] { serve(read_queue_); });
    start_worker("store writes", [this] { serve(put_queue_); });
  }
  return {};
}

void RedisStore::stop_keepers() {
  const std::lock_guard lock(mutex_);
  closing_ = true;
  change_.notify_all();
}

void RedisStore::serve(StoreQueue& queue) {
  std::unique_ptr<RedisConnection> connection;
  while (!queue.closed()) {
    if (!queue.wait(-1)) continue;
    Batch batch = queue.try_pop_batch(batch_, static_cast<size_t>(options_.threads));
    if (batch.empty()) continue;
    for (StoreOpPtr& op : batch) {
      if (begin(op)) continue;
      finish(op, false);
      op.reset();
    }
    if (unavailable_.load()) {
      connection.reset();
    } else {
      carry_out(connection, batch);
    }
    fail_all(batch);
  }
}

void RedisStore::carry_out(std::unique_ptr<RedisConnection>& connection, Batch& batch) {
  for (std::erase(batch, nullptr); !batch.empty(); std::erase(batch, nullptr)) {
    const bool is_new = !connection;
    try {
      if (!connection) connection = std::make_unique<RedisConnection>(options_, host_);
      if (batch.front()->kind() == StoreOp::Kind::kPut) {
        write(*connection, batch);
      } else {
        read(*connection, batch);
      }
    } catch (const ErrorException& failure) {
      connection.reset();
      // An old connection may have ended while nobody used it; that says nothing of the server.
      if (!is_new && failure.error().code == ErrorCode::kUnavailable) continue;
      trip(failure.error());
      return;
    }
  }
}

/// Runs a batch of gets and probes; sets to null what it has finished.
void RedisStore::read(RedisConnection& connection, Batch& batch) {
  const bool refreshes = options_.ttl_s > 0;
  for (const StoreOpPtr& op : batch) {
    const std::string key = key_of(op->key());
    const bool is_get = op->kind() == StoreOp::Kind::kGet;
    connection.queue({is_get ? "GET" : "STRLEN", key});
    if (is_get && refreshes) connection.queue({"EXPIRE", key, ttl_});
  }
  connection.send();
  Batch bad;
  const auto header = std::make_unique<PageHeader>();
  for (StoreOpPtr& op : batch) {
    const auto reply = connection.receive({std::as_writable_bytes(std::span(header.get(), 1)), op->buffer()});
    if (op->kind() == StoreOp::Kind::kGet && refreshes) (void)connection.receive();
    bool is_bad = false;
    const bool ok = judge(*op, reply, *header, is_bad);
    if (is_bad) {
      bad.push_back(op);
      continue;
    }
    finish(op, ok);
    op.reset();
  }
  remove(connection, bad);
  for (const StoreOpPtr& op : bad) finish(op, false);
  // Their caller may put the page anew from here on, so they were held back until the bad one was gone.
  batch.clear();
}

bool RedisStore::judge(StoreOp& op, const RedisReply& reply, const PageHeader& header, bool& is_bad) {
  using Kind = RedisReply::Kind;
  const bool is_get = op.kind() == StoreOp::Kind::kGet;
  const bool wrong_type = reply.kind == Kind::kError && reply.text.starts_with("WRONGTYPE");
  if (reply.kind == Kind::kError && !wrong_type) refused(is_get ? "GET" : "STRLEN", reply);
  if (!is_get) return reply.kind == Kind::kInteger && reply.integer == static_cast<int64_t>(format_.record_bytes());
  if (reply.kind != Kind::kBulk && !wrong_type) return false;
  const RecordStatus verdict =
      wrong_type ? RecordStatus::kCorrupt : format_.check(header, op.key(), op.buffer(), reply.bulk_bytes);
  if (verdict == RecordStatus::kValid) return true;
  const bool foreign = verdict == RecordStatus::kForeign;
  ++(foreign ? counters_.foreign : counters_.corrupt);
  log_.warn(
      foreign ? "foreign" : "corrupt", "page store {}: {} is {} ({}): deleting it", name_, key_of(op.key()),
      foreign ? "of another identity, key or version" : "corrupt",
      wrong_type ? "not a string" : fmt::format("{} bytes found, {} wanted", reply.bulk_bytes, format_.record_bytes()));
  is_bad = true;
  return false;
}

void RedisStore::remove(RedisConnection& connection, const Batch& bad) {
  if (bad.empty()) return;
  for (const StoreOpPtr& op : bad) connection.queue({"DEL", key_of(op->key())});
  connection.send();
  for (size_t i = 0; i < bad.size(); ++i) {
    const RedisReply reply = connection.receive();
    if (reply.kind == RedisReply::Kind::kError) refused("DEL", reply);
  }
}

/// Runs a batch of puts; sets to null what it has finished.
void RedisStore::write(RedisConnection& connection, Batch& batch) {
  for (const StoreOpPtr& op : batch) connection.queue({"STRLEN", key_of(op->key())});
  connection.send();
  std::vector<StoreOpPtr*> absent;
  std::vector<StoreOpPtr*> present;
  for (StoreOpPtr& op : batch) {
    const RedisReply reply = connection.receive();
    const bool is_there =
        reply.kind == RedisReply::Kind::kInteger && reply.integer == static_cast<int64_t>(format_.record_bytes());
    (is_there ? present : absent).push_back(&op);
  }
  const bool expires = options_.ttl_s > 0;
  std::vector<std::unique_ptr<PageHeader>> headers(absent.size());
  for (size_t i = 0; i < absent.size(); ++i) {
    StoreOp& op = **absent[i];
    headers[i] = format_.make_header(op.key(), op.buffer());
    const std::array value{std::as_bytes(std::span(headers[i].get(), 1)), std::span<const std::byte>(op.buffer())};
    const std::string key = key_of(op.key());
    if (expires) {
      connection.queue_value({"SET", key, "EX", ttl_}, value);
    } else {
      connection.queue_value({"SET", key}, value);
    }
  }
  for (const StoreOpPtr* op : present) {
    if (expires) connection.queue({"EXPIRE", key_of((*op)->key()), ttl_});
  }
  connection.send();
  for (StoreOpPtr* op : absent) {
    const RedisReply reply = connection.receive();
    const bool ok = reply.kind == RedisReply::Kind::kStatus;
    if (!ok) refused("SET", reply);
    counters_.written += ok ? 1 : 0;
    counters_.bytes_written += ok ? (*op)->buffer().size() : 0;
    finish(*op, ok);
    op->reset();
  }
  for (StoreOpPtr* op : present) {
    if (expires) (void)connection.receive();
    ++counters_.already_there;
    finish(*op, true);
    op->reset();
  }
}

void RedisStore::refused(const char* command, const RedisReply& reply) {
  ++counters_.errors;
  const std::string kind = reply.text.substr(0, reply.text.find(' '));
  log_.warn(fmt::format("{} {}", command, kind), "page store {}: the server refuses {}: {}", name_, command,
            reply.text);
}

void RedisStore::fail_all(Batch& batch) {
  for (const StoreOpPtr& op : batch) {
    if (op) finish(op, false);
  }
}

void RedisStore::trip(const Error& error) {
  {
    const std::lock_guard lock(mutex_);
    if (unavailable_.exchange(true)) return;
    ++counters_.errors;
    tripped_at_ = Clock::now();
    if (tripped_at_ - recovered_at_ > kProbation) retry_ = kFirstRetry;
  }
  change_.notify_all();
  log::warn("page store {}: {}; every get misses and every put is refused until the server answers", name_,
            error.message);
}

void RedisStore::recover() {
  std::unique_lock lock(mutex_);
  while (!closing_) {
    if (!unavailable_.load()) {
      change_.wait(lock);
      continue;
    }
    change_.wait_for(lock, retry_, [this] { return closing_; });
    if (closing_) return;
    retry_ = std::min(2 * retry_, kMaxRetry);
    lock.unlock();
    bool answers = true;
    try {
      const RedisConnection probe(options_, host_);
    } catch (const ErrorException& failure) {
      answers = false;
      // What waiting cannot mend is worth saying again.
      if (failure.error().code == ErrorCode::kInvalidArgument)
        log_.warn("probe", "page store {}: {}", name_, failure.what());
    }
    lock.lock();
    if (!answers) continue;
    recovered_at_ = Clock::now();
    unavailable_.store(false);
    const std::chrono::duration<double> away = recovered_at_ - tripped_at_;
    log::info("page store {}: the server answers again after {:.1f} s", name_, away.count());
  }
}

Result<void> check_options(const RedisStoreOptions& options) {
  const auto invalid = [&](const char* what, int64_t found, int64_t least, int64_t most) {
    return make_error(ErrorCode::kInvalidArgument, "page store {}: {} is {}, {} to {} is wanted", redis_name(options),
                      what, found, least, most);
  };
  constexpr int64_t kDay = 86400;
  if (options.host.empty()) {
    return make_error(ErrorCode::kInvalidArgument,
                      "page store redis: the host is empty, a name, an address or the "
                      "path of a socket is wanted");
  }
  if (options.host.starts_with('/') && options.host.size() >= sizeof(sockaddr_un::sun_path)) {
    return make_error(ErrorCode::kInvalidArgument,
                      "page store redis: the socket's path {} has {} bytes, at most {} "
                      "are wanted",
                      options.host, options.host.size(), sizeof(sockaddr_un::sun_path) - 1);
  }
  if (options.host.starts_with('/') && options.tls.enabled) {
    return make_error(ErrorCode::kInvalidArgument,
                      "page store redis: TLS over the socket {}, a name or an address is wanted", options.host);
  }
  if (options.tls.certificate_file.empty() != options.tls.key_file.empty()) {
    return make_error(ErrorCode::kInvalidArgument, "page store {}: a certificate and its key are wanted, only {} found",
                      redis_name(options), options.tls.key_file.empty() ? "the certificate" : "the key");
  }
  if (options.port == 0) return invalid("the port", 0, 1, 65535);
  if (options.db < 0) return invalid("the database", options.db, 0, INT32_MAX);
  if (options.ttl_s < 0 || options.ttl_s > 36500 * kDay) return invalid("the ttl in s", options.ttl_s, 0, 36500 * kDay);
  if (options.timeout_ms < 1) return invalid("the time-out in ms", options.timeout_ms, 1, INT32_MAX);
  if (options.threads < 1 || options.threads > kMaxThreads) {
    return invalid("the number of threads", options.threads, 1, kMaxThreads);
  }
  if (options.max_queued_puts < 1) return invalid("the queue for puts", 0, 1, INT32_MAX);
  return {};
}

}  // namespace

Result<std::unique_ptr<PageStore>> open_redis_store(async::Runtime& runtime, StoreIdentity identity,
                                                    RedisStoreOptions options) {
  RETURN_IF_ERROR(check_identity(identity));
  RETURN_IF_ERROR(check_options(options));
  const auto store = std::make_shared<RedisStore>(runtime, identity, options);
  RETURN_IF_ERROR(store->start());
  return make_page_store(store);
}

}  // namespace millrace::cache
