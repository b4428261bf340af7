#include <liburing.h>
#include <poll.h>

#include <cerrno>
#include <cstring>

#include "base/check.h"
#include "cache/store/file_io.h"

namespace millrace::cache {
namespace {

/// Operations of one worker that may be under way at once. Each has one call in the ring at most.
constexpr unsigned kDepth = 16;
constexpr unsigned kStatFields = STATX_TYPE | STATX_SIZE | STATX_MTIME;

class UringIo final : public FileIo {
 public:
  /// Opens the ring. Returns 0, -errno when the kernel gives no ring, or -ENOSYS when it lacks an operation.
  int init() {
    if (const int failure = io_uring_queue_init(2 * kDepth, &ring_, 0); failure < 0) return failure;
    is_open_ = true;
    io_uring_probe* probe = io_uring_get_probe_ring(&ring_);
    if (probe == nullptr) return -ENOSYS;
    bool complete = true;
    for (const int operation : {IORING_OP_OPENAT, IORING_OP_READV, IORING_OP_WRITEV, IORING_OP_FSYNC, IORING_OP_CLOSE,
                                IORING_OP_RENAMEAT, IORING_OP_UNLINKAT, IORING_OP_STATX, IORING_OP_POLL_ADD}) {
      complete = complete && io_uring_opcode_supported(probe, operation) != 0;
    }
    io_uring_free_probe(probe);
    return complete ? 0 : -ENOSYS;
  }
  ~UringIo() override {
    if (is_open_) io_uring_queue_exit(&ring_);
  }

  void serve(StoreQueue& queue, const Begin& begin) override {
    while (!queue.closed() || running() > 0) {
      if (!watches_ && running() < kDepth && !queue.closed()) watch(queue.wake_descriptor());
      submit_and_wait();
      bool woken = false;
      io_uring_cqe* entry = nullptr;
      while (io_uring_peek_cqe(&ring_, &entry) == 0) {
        auto* call = static_cast<IoCall*>(io_uring_cqe_get_data(entry));
        const int result = entry->res;
        io_uring_cqe_seen(&ring_, entry);
        if (call != nullptr) {
          call->result = result;
          call->waiter.resume();
        } else {
          watches_ = false;
          woken = true;
        }
      }
      // One token, one operation: the rest is left to workers that have less to do.
      if (woken && queue.wait(0)) {
        if (StoreOpPtr op = queue.try_pop()) begin(*this, std::move(op));
      }
    }
  }

 private:
  bool start(IoCall& call) override {
    io_uring_sqe* entry = next_entry();
    const auto count = static_cast<unsigned>(call.parts.size());
    switch (call.kind) {
      case IoCall::Kind::kOpen: io_uring_prep_openat(entry, call.folder, call.path, call.flags, 0666); break;
      case IoCall::Kind::kRead: io_uring_prep_readv(entry, call.file, call.parts.data(), count, call.offset); break;
      case IoCall::Kind::kWrite: io_uring_prep_writev(entry, call.file, call.parts.data(), count, call.offset); break;
      case IoCall::Kind::kSync: io_uring_prep_fsync(entry, call.file, IORING_FSYNC_DATASYNC); break;
      case IoCall::Kind::kClose: io_uring_prep_close(entry, call.file); break;
      case IoCall::Kind::kRename:
        io_uring_prep_renameat(entry, call.folder, call.path, call.folder, call.new_path, 0);
        break;
      case IoCall::Kind::kUnlink: io_uring_prep_unlinkat(entry, call.folder, call.path, 0); break;
      case IoCall::Kind::kStat:
        io_uring_prep_statx(entry, call.folder, call.path, AT_SYMLINK_NOFOLLOW, kStatFields, call.status);
        break;
    }
    io_uring_sqe_set_data(entry, &call);
    return false;
  }

  void watch(int wake_descriptor) {
    io_uring_sqe* entry = next_entry();
    io_uring_prep_poll_add(entry, wake_descriptor, POLLIN);
    io_uring_sqe_set_data(entry, nullptr);
    watches_ = true;
  }

  io_uring_sqe* next_entry() {
    io_uring_sqe* entry = io_uring_get_sqe(&ring_);
    CHECK(entry != nullptr, "more than {} calls wait in a ring of depth {}", 2 * kDepth, kDepth);
    return entry;
  }

  void submit_and_wait() {
    const int result = io_uring_submit_and_wait(&ring_, 1);
    const bool passes = result == -EINTR || result == -EAGAIN || result == -EBUSY;
    CHECK(result >= 0 || passes, "io_uring_submit_and_wait: {}", std::strerror(-result));
  }

  io_uring ring_{};
  bool is_open_ = false;
  bool watches_ = false;
};

}  // namespace

std::unique_ptr<FileIo> make_uring_io(std::string& reason) {
  auto io = std::make_unique<UringIo>();
  const int failure = io->init();
  if (failure == 0) return io;
  reason = std::strerror(-failure);
  return nullptr;
}

}  // namespace millrace::cache
