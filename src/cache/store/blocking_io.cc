#include <unistd.h>

#include <cerrno>
#include <cstdio>

#include "cache/store/file_io.h"

namespace millrace::cache {
namespace {

constexpr unsigned kStatFields = STATX_TYPE | STATX_SIZE | STATX_MTIME;

int64_t run(const IoCall& call) {
  const auto count = static_cast<int>(call.parts.size());
  const auto offset = static_cast<off_t>(call.offset);
  switch (call.kind) {
    case IoCall::Kind::kOpen: return openat(call.folder, call.path, call.flags, 0666);
    case IoCall::Kind::kRead: return preadv(call.file, call.parts.data(), count, offset);
    case IoCall::Kind::kWrite: return pwritev(call.file, call.parts.data(), count, offset);
    case IoCall::Kind::kSync: return fdatasync(call.file);
    case IoCall::Kind::kClose: return close(call.file);
    case IoCall::Kind::kRename: return renameat(call.folder, call.path, call.folder, call.new_path);
    case IoCall::Kind::kUnlink: return unlinkat(call.folder, call.path, 0);
    case IoCall::Kind::kStat: return statx(call.folder, call.path, AT_SYMLINK_NOFOLLOW, kStatFields, call.status);
  }
  return -1;
}

class BlockingIo final : public FileIo {
 public:
  void serve(StoreQueue& queue, const Begin& begin) override {
    while (!queue.closed()) {
      if (!queue.wait(-1)) continue;
      if (StoreOpPtr op = queue.try_pop()) begin(*this, std::move(op));
    }
  }

 private:
  bool start(IoCall& call) override {
    const int64_t result = run(call);
    call.result = result < 0 ? -int64_t{errno} : result;
    return true;
  }
};

}  // namespace

std::unique_ptr<FileIo> make_blocking_io() {
  return std::make_unique<BlockingIo>();
}

}  // namespace millrace::cache
