#pragma once

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/uio.h>

#include <coroutine>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>

#include "cache/store/queued_store.h"

namespace millrace::cache {

/// One system call; its result is what the call returns, or -errno. Paths are relative to `folder`.
struct IoCall {
  enum class Kind { kOpen, kRead, kWrite, kSync, kClose, kRename, kUnlink, kStat };
  Kind kind;
  int folder = -1;
  const char* path = nullptr;
  const char* new_path = nullptr;  // kRename
  int flags = 0;                   // kOpen
  int file = -1;                   // kRead, kWrite, kSync, kClose
  std::span<const iovec> parts;    // kRead, kWrite
  uint64_t offset = 0;             // kRead, kWrite
  struct statx* status = nullptr;  // kStat: size, mode, mtime
  int64_t result = 0;
  std::coroutine_handle<> waiter;
};

/// The file system as coroutines of one worker thread see it. What a call points to must live until it has ended.
class FileIo {
 public:
  struct Wait {
    FileIo& io;
    IoCall call;
    bool await_ready() noexcept { return false; }
    bool await_suspend(std::coroutine_handle<> waiter) {
      call.waiter = waiter;
      return !io.start(call);
    }
    int64_t await_resume() noexcept { return call.result; }
  };

  virtual ~FileIo() = default;
  [[nodiscard]] Wait open(int folder, const char* path, int flags) {
    return {*this, {.kind = IoCall::Kind::kOpen, .folder = folder, .path = path, .flags = flags | O_CLOEXEC}};
  }
  [[nodiscard]] Wait read(int file, std::span<const iovec> into, uint64_t offset) {
    return {*this, {.kind = IoCall::Kind::kRead, .file = file, .parts = into, .offset = offset}};
  }
  [[nodiscard]] Wait write(int file, std::span<const iovec> from, uint64_t offset) {
    return {*this, {.kind = IoCall::Kind::kWrite, .file = file, .parts = from, .offset = offset}};
  }
  /// Syncs the data, and the metadata needed to find it.
  [[nodiscard]] Wait sync(int file) { return {*this, {.kind = IoCall::Kind::kSync, .file = file}}; }
  [[nodiscard]] Wait close(int file) { return {*this, {.kind = IoCall::Kind::kClose, .file = file}}; }
  [[nodiscard]] Wait rename(int folder, const char* from, const char* to) {
    return {*this, {.kind = IoCall::Kind::kRename, .folder = folder, .path = from, .new_path = to}};
  }
  [[nodiscard]] Wait unlink(int folder, const char* path) {
    return {*this, {.kind = IoCall::Kind::kUnlink, .folder = folder, .path = path}};
  }
  [[nodiscard]] Wait stat(int folder, const char* path, struct statx& status) {
    return {*this, {.kind = IoCall::Kind::kStat, .folder = folder, .path = path, .status = &status}};
  }

  /// Starts a coroutine for an operation. It calls ended() before it ends.
  using Begin = std::function<void(FileIo& io, StoreOpPtr op)>;
  /// Runs the worker thread's loop: serves the queue until it is closed and everything begun has ended.
  virtual void serve(StoreQueue& queue, const Begin& begin) = 0;
  void began() { ++running_; }
  void ended() { --running_; }

 protected:
  /// Starts a call. True when it has ended already; else its waiter is resumed when it has.
  [[nodiscard]] virtual bool start(IoCall& call) = 0;
  [[nodiscard]] size_t running() const { return running_; }

 private:
  size_t running_ = 0;
};

/// Makes a FileIo whose calls block the worker: one operation at a time.
[[nodiscard]] std::unique_ptr<FileIo> make_blocking_io();
/// Makes a FileIo over an io_uring of the worker's own: several operations at a time. Null, with `reason` set, where
/// the kernel or a sandbox refuses it.
[[nodiscard]] std::unique_ptr<FileIo> make_uring_io(std::string& reason);

}  // namespace millrace::cache
