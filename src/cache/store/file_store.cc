#include <condition_variable>
#include <csignal>
#include <exception>

#include "base/log.h"
#include "cache/store/file_pages.h"

namespace millrace::cache {
namespace {

using Clock = std::chrono::steady_clock;
using namespace std::chrono_literals;

/// Time between two writes of access times, and after which a removed folder is noticed when nobody puts.
constexpr Clock::duration kMaintenanceInterval = 1s;
/// Time after which changes show that no journal tells of, such as files removed by hand; longer for slow scans.
constexpr Clock::duration kScanInterval = 60s;
constexpr int kScanShare = 50;
/// Time after its opening in which a store leaves folders of other stages alone, which may still have to open theirs.
constexpr Clock::duration kSettleTime = 10min;
constexpr int kMaxThreads = 256;

/// The file store: workers serve the queues, each through a FileIo of its own, and one more thread maintains the
/// folder.
class FileStore final : public QueuedStore {
 public:
  FileStore(async::Runtime& runtime, const StoreIdentity& identity, const FileStoreOptions& options,
            std::unique_ptr<StoreFolder> folder)
      : QueuedStore(runtime, identity, options.max_queued_puts, options.limits),
        folder_(std::move(folder), identity, options, format_, counters_),
        evictor_(folder_, options, format_, counters_),
        pages_(folder_, evictor_, format_, counters_),
        settled_at_(Clock::now() + std::min<Clock::duration>(kSettleTime, options.abandoned_after)) {
    const std::string engine = make_workers(options);
    folder_.rescan();
    log::info("page store {}: {} pages, {} of {} bytes; {} workers for reads, as many for writes, {}", folder_.path(),
              folder_.index().page_count(), folder_.index().bytes(), options.max_bytes, options.threads, engine);
  }

  void start() {
    for (size_t i = 0; i < workers_.size(); ++i) {
      const bool reads = i % 2 == 0;
      start_worker(reads ? "store reads" : "store writes",
                   [this, reads, &io = *workers_[i]] { io.serve(reads ? read_queue_ : put_queue_, begin_op_); });
    }
    start_keeper("store keeper", [this] { keep(); });
  }

  [[nodiscard]] StoreStats stats() const override {
    StoreStats stats = QueuedStore::stats();
    stats.bytes_stored = folder_.index().bytes();
    return stats;
  }

 private:
  [[nodiscard]] std::string name() const override { return folder_.path(); }
  void stop_keepers() override {
    const std::lock_guard lock(mutex_);
    closing_ = true;
    closing_signal_.notify_all();
  }
  [[nodiscard]] std::string make_workers(const FileStoreOptions& options);
  IoRoot run(FileIo& io, StoreOpPtr op);
  [[nodiscard]] IoTask<bool> carry_out(FileIo& io, StoreOp& op);
  IoRoot keep_bound();
  void keep();

  mutable FolderSync folder_;
  PageEvictor evictor_;
  FilePages pages_;
  const Clock::time_point settled_at_;
  const FileIo::Begin begin_op_ = [this](FileIo& io, StoreOpPtr op) { run(io, std::move(op)); };
  std::vector<std::unique_ptr<FileIo>> workers_;  // for reads and for puts in turns
  const std::unique_ptr<FileIo> maintenance_io_ = make_blocking_io();
  std::mutex mutex_;
  std::condition_variable closing_signal_;
  bool closing_ = false;
};

std::string FileStore::make_workers(const FileStoreOptions& options) {
  std::string reason = "it is switched off";
  const size_t count = 2 * static_cast<size_t>(options.threads);
  while (workers_.size() < count && options.use_io_uring) {
    auto io = make_uring_io(reason);
    if (!io) break;
    workers_.push_back(std::move(io));
  }
  if (workers_.size() == count) return "io_uring";
  while (workers_.size() < count) workers_.push_back(make_blocking_io());
  return fmt::format("blocking calls (no io_uring: {})", reason);
}

IoTask<bool> FileStore::carry_out(FileIo& io, StoreOp& op) {
  switch (op.kind()) {
    case StoreOp::Kind::kGet: return pages_.get(io, op.key(), op.buffer());
    case StoreOp::Kind::kPut: return pages_.put(io, op.key(), op.buffer());
    case StoreOp::Kind::kExists: break;
  }
  return pages_.exists(io, op.key());
}

IoRoot FileStore::run(FileIo& io, StoreOpPtr op) {
  io.began();
  bool ok = false;
  try {
    if (begin(op)) ok = co_await carry_out(io, *op);
  } catch (const std::exception& failure) {
    // This is at worst a lack of memory: the file system's failures do not throw.
    ++counters_.errors;
    log::error("page store {}: {}", folder_.path(), failure.what());
  }
  finish(op, ok);
  io.ended();
}

IoRoot FileStore::keep_bound() {
  (void)co_await evictor_.make_room(*maintenance_io_);
}

void FileStore::keep() {
  keep_bound();
  auto next_scan = std::min(Clock::now() + kScanInterval, settled_at_);
  auto soonest_scan = Clock::now();
  std::unique_lock lock(mutex_);
  while (!closing_) {
    closing_signal_.wait_for(lock, kMaintenanceInterval, [this] { return closing_; });
    lock.unlock();
    folder_.write_access_times();
    folder_.repair();
    folder_.poll_journal();
    const auto begin = Clock::now();
    if (begin >= next_scan || (begin >= soonest_scan && folder_.has_missed_changes())) {
      folder_.rescan();
      if (begin >= settled_at_) evictor_.scan_abandoned();
      keep_bound();
      soonest_scan = Clock::now() + (Clock::now() - begin) * kScanShare;
      next_scan = std::max(Clock::now() + kScanInterval, soonest_scan);
    }
    lock.lock();
  }
  lock.unlock();
  folder_.write_access_times();  // of a store that was closed before the first round
}

Result<void> check_options(const FileStoreOptions& options, size_t record_bytes) {
  if (options.path.empty()) {
    return make_error(ErrorCode::kInvalidArgument, "page store: the path is empty, a directory is wanted");
  }
  if (options.max_bytes < record_bytes) {
    return make_error(ErrorCode::kInvalidArgument,
                      "page store {}: room for {} bytes is less than one page takes with its header, {} bytes",
                      options.path, options.max_bytes, record_bytes);
  }
  if (options.threads < 1 || options.threads > kMaxThreads) {
    return make_error(ErrorCode::kInvalidArgument, "page store {}: {} threads, 1 to {} are wanted", options.path,
                      options.threads, kMaxThreads);
  }
  if (options.max_queued_puts == 0) {
    return make_error(ErrorCode::kInvalidArgument, "page store {}: a queue for 0 puts refuses them all", options.path);
  }
  return {};
}

}  // namespace

Result<std::unique_ptr<PageStore>> open_file_store(async::Runtime& runtime, StoreIdentity identity,
                                                   FileStoreOptions options) {
  RETURN_IF_ERROR(check_identity(identity));
  RETURN_IF_ERROR(check_options(options, RecordFormat(identity).record_bytes()));
  // A limit on the size of files is one more reason to refuse a put (EFBIG); the signal would end the process.
  std::signal(SIGXFSZ, SIG_IGN);
  auto folder = StoreFolder::open(options.path, identity);
  if (!folder) return folder.error();
  const auto store = std::make_shared<FileStore>(runtime, identity, options, std::move(*folder));
  store->start();
  return make_page_store(store);
}

}  // namespace millrace::cache
