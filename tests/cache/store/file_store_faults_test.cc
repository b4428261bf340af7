#include <fcntl.h>
#include <linux/fs.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cerrno>
#include <csignal>
#include <fstream>
#include <optional>

#include "cache/store/page_record.h"
#include "cache/store/store_support.h"
#include "support/skip.h"

using namespace millrace;
using namespace millrace::cache;
using namespace millrace::test;
namespace fs = std::filesystem;

namespace {

/// Mounts of this process alone. False where the system refuses.
bool enter_private_mounts() {
  static const bool entered = [] {
    if (unshare(CLONE_NEWNS) != 0) {
      const auto user = geteuid();
      if (unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0) return false;
      std::ofstream("/proc/self/uid_map") << "0 " << user << " 1";
    }
    return mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0;
  }();
  return entered;
}

/// A file system in memory of `size` ("100k"), gone with the object.
class SmallDisk {
 public:
  explicit SmallDisk(const std::string& size) {
    mounted_ = mount("tmpfs", path().c_str(), "tmpfs", 0, ("size=" + size).c_str()) == 0;
  }
  ~SmallDisk() {
    if (mounted_) umount2(path().c_str(), MNT_DETACH);
  }
  [[nodiscard]] bool mounted() const { return mounted_; }
  [[nodiscard]] std::string path() const { return folder_.path(); }
  /// Waits while a file counts as being written: one closed through a ring does for a moment, as does one being dated.
  void make_read_only(bool read_only) const {
    const unsigned long flags = MS_REMOUNT | (read_only ? MS_RDONLY : 0);
    wait_until([&] { return mount(nullptr, path().c_str(), nullptr, flags, nullptr) == 0 || errno != EBUSY; });
    struct statvfs now{};
    REQUIRE(statvfs(path().c_str(), &now) == 0);
    REQUIRE(((now.f_flag & ST_RDONLY) != 0) == read_only);
  }

 private:
  TempFolder folder_;
  bool mounted_ = false;
};

/// A file that not even root may remove, or a directory in which nobody may make files, while the object lives.
class ImmutablePath {
 public:
  explicit ImmutablePath(const fs::path& path) : file_(open(path.c_str(), O_RDONLY | O_CLOEXEC)) {
    int flags = FS_IMMUTABLE_FL;
    holds_ = file_ >= 0 && ioctl(file_, FS_IOC_SETFLAGS, &flags) == 0;
  }
  ~ImmutablePath() {
    int flags = 0;
    if (holds_) ioctl(file_, FS_IOC_SETFLAGS, &flags);
    close(file_);
  }
  [[nodiscard]] bool holds() const { return holds_; }

 private:
  int file_;
  bool holds_ = false;
};

/// The largest size of a file that this process may write, as long as the object lives.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t bytes) {
    REQUIRE(getrlimit(RLIMIT_FSIZE, &before_) == 0);
    const rlimit limit{bytes, before_.rlim_max};
    REQUIRE(setrlimit(RLIMIT_FSIZE, &limit) == 0);
  }
  ~FileSizeLimit() { setrlimit(RLIMIT_FSIZE, &before_); }

 private:
  rlimit before_{};
};

std::unique_ptr<PageStore> open_store(StoreWorld& world, const std::string& path, bool with_ring,
                                      uint64_t max_pages = 1000) {
  FileStoreOptions options;
  options.path = path;
  options.max_bytes = max_pages * kRecordBytes;
  options.max_queued_puts = 1000;
  options.use_io_uring = with_ring;
  auto opened = open_file_store(world.runtime(), make_identity(), options);
  INFO((opened ? "" : opened.error().message));
  REQUIRE(opened.has_value());
  return std::move(*opened);
}

fs::path page_file(const std::string& path, uint64_t number) {
  const std::string digits = make_key(number).hex();
  return fs::path(path) / hash_of(make_identity()).hex() / digits.substr(0, 2) / digits;
}

}  // namespace

TEST_CASE("a full disk refuses puts and keeps pages and logs once") {
  const bool with_ring = GENERATE(true, false);
  if (!enter_private_mounts()) SKIP_TEST("this system allows no mount of a process's own");
  const SmallDisk disk("400k");
  if (!disk.mounted()) SKIP_TEST("tmpfs cannot be mounted here");
  StoreWorld world;
  const auto store = open_store(world, disk.path(), with_ring);
  {
    const CapturedLog log;
    const size_t stored = world.put_all(*store, 0, 100);
    REQUIRE(stored > 5);
    REQUIRE(stored < 40);
    REQUIRE(world.get_all(*store, 0, 100) == stored);
    const StoreStats stats = store->stats();
    REQUIRE(stats.written == stored);
    REQUIRE(stats.refused == 100 - stored);
    REQUIRE(stats.errors >= 100 - stored);
    REQUIRE(stats.bytes_stored == stored * kRecordBytes);
    REQUIRE(log.count("No space left on device") == 1);
  }
  for (uint64_t i = 0; i < 100; ++i) fs::remove(page_file(disk.path(), i));
  REQUIRE(world.put(*store, 200));
  REQUIRE(world.get(*store, 200));
}

TEST_CASE("a read-only directory refuses puts and still gives pages") {
  if (!enter_private_mounts()) SKIP_TEST("this system allows no mount of a process's own");
  const SmallDisk disk("4m");
  if (!disk.mounted()) SKIP_TEST("tmpfs cannot be mounted here");
  StoreWorld world;
  const auto store = open_store(world, disk.path(), true);
  REQUIRE(world.put_all(*store, 0, 10) == 10);
  disk.make_read_only(true);
  {
    const CapturedLog log;
    REQUIRE(world.put_all(*store, 10, 20) == 0);
    REQUIRE(world.get_all(*store, 0, 10) == 10);
    REQUIRE(log.count("Read-only file system") == 1);
    FileStoreOptions options;
    options.path = disk.path();
    options.max_bytes = 1 << 20;
    const auto second = open_file_store(world.runtime(), make_identity(), options);
    REQUIRE_FALSE(second.has_value());
    REQUIRE_THAT(second.error().message, Catch::Contains(disk.path()) && Catch::Contains("Read-only file system"));
  }
  REQUIRE(store->stats().refused == 20);
  disk.make_read_only(false);
  REQUIRE(world.put(*store, 10));
}

TEST_CASE("a corrupt page that cannot be deleted stays a miss") {
  if (!enter_private_mounts()) SKIP_TEST("this system allows no mount of a process's own");
  const SmallDisk disk("4m");
  if (!disk.mounted()) SKIP_TEST("tmpfs cannot be mounted here");
  StoreWorld world;
  const auto store = open_store(world, disk.path(), true);
  REQUIRE(world.put(*store, 1));
  fs::resize_file(page_file(disk.path(), 1), 1000);
  disk.make_read_only(true);
  for (int i = 0; i < 3; ++i) REQUIRE_FALSE(world.get(*store, 1));
  REQUIRE(store->stats().corrupt == 3);
  disk.make_read_only(false);
}

TEST_CASE("a directory removed under a running store is recreated") {
  const bool with_ring = GENERATE(true, false);
  const bool is_whole = GENERATE(true, false);
  const TempFolder folder;
  StoreWorld world;
  const auto store = open_store(world, folder.path(), with_ring);
  REQUIRE(world.put_all(*store, 0, 10) == 10);
  const CapturedLog log;
  if (is_whole) {
    fs::remove_all(folder.path());
  } else {
    fs::remove_all(page_file(folder.path(), 1).parent_path());
  }
  REQUIRE_FALSE(world.get(*store, 1));
  REQUIRE_FALSE(world.exists(*store, 1));
  wait_until([&] { return world.put(*store, 1); });
  REQUIRE(world.get(*store, 1));
  REQUIRE(world.get_all(*store, 0, 10) == (is_whole ? 1 : 10));
  wait_until([&] { return log.count("directory was removed; it was created again and holds") == 1; });
  REQUIRE(log.count("page store") == (is_whole ? 1 : 2));  // a part's absence shows in the put that needs it
  REQUIRE(store->stats().bytes_stored == (is_whole ? 1 : 10) * kRecordBytes);
}

TEST_CASE("a directory that forbids writing refuses puts") {
  const TempFolder folder;
  StoreWorld world;
  const auto store = open_store(world, folder.path(), true);
  REQUIRE(world.put(*store, 1));
  const ImmutablePath tmp(fs::path(folder.path()) / hash_of(make_identity()).hex() / "tmp");
  if (!tmp.holds()) SKIP_TEST("this file system, or the lack of privileges, allows no immutable directory");
  const CapturedLog log;
  REQUIRE(world.put_all(*store, 2, 5) == 0);
  REQUIRE(world.get(*store, 1));
  REQUIRE(store->stats().errors == 5);
  REQUIRE(log.count("Operation not permitted") == 1);
}

TEST_CASE("an immutable page or mount point stops no other write") {
  const bool is_mounted = GENERATE(true, false);
  CAPTURE(is_mounted);
  if (is_mounted && !enter_private_mounts()) SKIP_TEST("this system allows no mount of a process's own");
  const TempFolder folder;
  StoreWorld world;
  const auto store = open_store(world, folder.path(), true, 10);
  for (uint64_t number = 0; number < 10; ++number) REQUIRE(world.put(*store, number));
  const fs::path oldest = page_file(folder.path(), 0);
  std::optional<ImmutablePath> immutable;
  if (is_mounted) {
    if (mount(oldest.c_str(), oldest.c_str(), nullptr, MS_BIND, nullptr) != 0) SKIP_TEST("no bind mounts here");
  } else {
    immutable.emplace(oldest);
    if (!immutable->holds()) SKIP_TEST("this file system, or the lack of privileges, allows no immutable file");
  }
  {
    const CapturedLog log;
    for (uint64_t number = 10; number < 30; ++number) REQUIRE(world.put(*store, number));
    REQUIRE(log.count("evicting") == 1);
  }
  REQUIRE(world.get(*store, 0));
  REQUIRE(world.get_all(*store, 21, 9) == 9);
  REQUIRE(store->stats().refused == 0);
  REQUIRE(store->stats().bytes_stored == 10 * kRecordBytes);
  if (is_mounted) umount2(oldest.c_str(), MNT_DETACH);
}

TEST_CASE("a file size limit refuses puts and ends no process") {
  const bool with_ring = GENERATE(true, false);
  CAPTURE(with_ring);
  std::signal(SIGXFSZ, SIG_DFL);  // what a process has before it opens a store
  const TempFolder folder;
  StoreWorld world;
  const auto store = open_store(world, folder.path(), with_ring);
  REQUIRE(world.put(*store, 1));
  {
    const CapturedLog log;
    for (const rlim_t limit : {rlim_t{kRecordBytes} - 1, rlim_t{5000}}) {
      const FileSizeLimit set(limit);
      REQUIRE(world.put_all(*store, 2, 20) == 0);
    }
    REQUIRE(log.count("File too large") >= 1);
    REQUIRE(log.count("page store") <= 4);
  }
  REQUIRE(world.get(*store, 1));
  REQUIRE(store->stats().refused == 40);
  REQUIRE(store->stats().bytes_stored == kRecordBytes);
  REQUIRE(world.put_all(*store, 2, 20) == 20);
}

TEST_CASE("a directory in place of a page is a miss and a refused put") {
  const TempFolder folder;
  StoreWorld world;
  const auto store = open_store(world, folder.path(), true);
  REQUIRE(world.put(*store, 1));
  const fs::path place = page_file(folder.path(), 1);
  fs::remove(place);
  fs::create_directories(place / "in the way");
  const CapturedLog log;
  for (int i = 0; i < 5; ++i) {
    REQUIRE_FALSE(world.get(*store, 1));
    REQUIRE_FALSE(world.put(*store, 1));
    REQUIRE_FALSE(world.exists(*store, 1));
  }
  REQUIRE(store->stats().errors == 10);
  REQUIRE(log.count("Is a directory") >= 1);
  REQUIRE(log.count("page store") == 2);
  REQUIRE(store->stats().bytes_stored == kRecordBytes);
}

// With an io_uring, opening such a pipe returns at once, so that only the blocking calls can hang here.
TEST_CASE("A page file that never answers is given up") {
  const TempFolder folder;
  const CapturedLog log;
  StoreWorld world;
  FileStoreOptions options{.path = folder.path(), .max_bytes = 100 * kRecordBytes, .use_io_uring = false};
  options.limits = {.operation = std::chrono::milliseconds(200), .close = std::chrono::milliseconds(100)};
  auto store = open_file_store(world.runtime(), make_identity(), options).value();
  REQUIRE(world.put(*store, 1));
  std::string page;
  for (const auto& entry : fs::recursive_directory_iterator(folder.path())) {
    if (entry.is_regular_file() && entry.file_size() == kRecordBytes) page = entry.path();
  }
  // Opening a pipe that nobody writes to never ends.
  fs::remove(page);
  REQUIRE(mkfifo(page.c_str(), 0600) == 0);
  CHECK_FALSE(world.get(*store, 1));
  CHECK(log.count("a get or probe has not ended after 0.2 s and is given up") == 1);
  store.reset();
  CHECK(log.count("its I/O has not ended 0.1 s after the store was closed") == 1);
  const int writer = open(page.c_str(), O_RDWR | O_NONBLOCK);
  REQUIRE(writer >= 0);
  ::close(writer);
}
