#include "cache/store/file_pages.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <catch2/catch.hpp>
#include <cerrno>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "cache/store/store_support.h"
#include "support/skip.h"

using namespace millrace;
using namespace millrace::cache;
using namespace millrace::test;
namespace fs = std::filesystem;

namespace {

using Kind = IoCall::Kind;

/// Makes the calls at once, remembers which, and may let one kind fail or move few bytes at a time.
class ScriptedIo final : public FileIo {
 public:
  void serve(StoreQueue&, const Begin&) override {}

  std::vector<Kind> calls;
  std::optional<Kind> failing;
  std::set<std::string> unremovable;  ///< names
  size_t failed_removals = 0;
  size_t max_bytes = SIZE_MAX;        ///< of one read or write
  uint64_t ends_at = UINT64_MAX;      ///< where reads find the end of any file
  std::function<void()> before_open;  ///< once
  std::function<void()> after_open;   ///< once, before the caller hears of it

 private:
  bool start(IoCall& call) override {
    calls.push_back(call.kind);
    if (call.kind == Kind::kOpen && before_open) std::exchange(before_open, nullptr)();
    if (call.kind == Kind::kUnlink && unremovable.contains(call.path)) {
      ++failed_removals;
      call.result = -EPERM;
      return true;
    }
    const bool fails = failing == call.kind;
    // A file that cannot be closed well is closed all the same.
    const int64_t result = fails && call.kind != Kind::kClose ? -1 : carry_out(call);
    call.result = fails ? -EIO : result < 0 ? -int64_t{errno} : result;
    if (call.kind == Kind::kOpen && after_open) std::exchange(after_open, nullptr)();
    return true;
  }
  int64_t carry_out(const IoCall& call) const {
    switch (call.kind) {
      case Kind::kOpen: return openat(call.folder, call.path, call.flags, 0666);
      case Kind::kRead:
        return pread(call.file, call.parts[0].iov_base,
                     std::min({call.parts[0].iov_len, max_bytes, ends_at - std::min(ends_at, call.offset)}),
                     static_cast<off_t>(call.offset));
      case Kind::kWrite:
        return pwrite(call.file, call.parts[0].iov_base, std::min(call.parts[0].iov_len, max_bytes),
                      static_cast<off_t>(call.offset));
      case Kind::kSync: return fdatasync(call.file);
      case Kind::kClose: return ::close(call.file);
      case Kind::kRename: return renameat(call.folder, call.path, call.folder, call.new_path);
      case Kind::kUnlink: return unlinkat(call.folder, call.path, 0);
      case Kind::kStat: break;
    }
    return statx(call.folder, call.path, AT_SYMLINK_NOFOLLOW, STATX_TYPE | STATX_SIZE | STATX_MTIME, call.status);
  }
};

/// The pages of an identity in a folder of their own.
struct Pages {
  explicit Pages(uint64_t max_pages = 10)
      : options{.path = folder.path(), .max_bytes = max_pages * kRecordBytes},
        sync(StoreFolder::open(folder.path(), make_identity()).value(), make_identity(), options, form, counters) {}

  bool put(uint64_t number) {
    bool ok = false;
    put_one(pages, io, number, ok);
    return ok;
  }
  bool get(uint64_t number) {
    bool ok = false;
    get_one(pages, io, number, ok);
    return ok;
  }
  /// Makes the next get of a page that was put read it from the disk; false where files lie in memory alone.
  [[nodiscard]] bool let_go_of(uint64_t number) {
    const std::string name = sync.path() + "/" + StoreFolder::page_name(make_key(number));
    const int file = open(name.c_str(), O_RDONLY | O_CLOEXEC);
    void* const mapped = mmap(nullptr, kRecordBytes, PROT_READ, MAP_SHARED, file, 0);
    std::array<unsigned char, (kRecordBytes + 4095) / 4096> resident{};
    const bool is_told =
        posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED) == 0 && mincore(mapped, kRecordBytes, resident.data()) == 0;
    munmap(mapped, kRecordBytes);
    close(file);
    return is_told && std::ranges::none_of(resident, [](unsigned char page) { return (page & 1) != 0; });
  }
  /// What lies in the folder besides what writers need.
  [[nodiscard]] size_t files() const {
    size_t count = 0;
    for (const auto& entry : fs::recursive_directory_iterator(folder.path())) {
      const fs::path kind = entry.path().extension();
      const bool is_ours = kind == ".lock" || kind == ".news" || kind == ".txt";
      count += entry.is_regular_file() && !is_ours ? 1 : 0;
    }
    return count;
  }

  TempFolder folder;
  const FileStoreOptions options;
  const RecordFormat form{make_identity()};
  StoreCounters counters;
  FolderSync sync;
  PageEvictor evictor{sync, options, form, counters};
  FilePages pages{sync, evictor, form, counters};
  ScriptedIo io;

 private:
  static IoRoot put_one(FilePages& pages, FileIo& io, uint64_t number, bool& ok) {
    const std::vector<std::byte> page = make_page(number);
    ok = co_await pages.put(io, make_key(number), page);
  }
  static IoRoot get_one(FilePages& pages, FileIo& io, uint64_t number, bool& ok) {
    std::vector<std::byte> into(kPageBytes);
    const bool hit = co_await pages.get(io, make_key(number), into);
    ok = hit && into == make_page(number);
  }
};

}  // namespace

TEST_CASE("a page is written aside and synced before it is named") {
  Pages world;
  world.io.max_bytes = 5000;
  REQUIRE(world.put(1));
  const std::vector<Kind> wanted{Kind::kStat,  Kind::kOpen, Kind::kWrite, Kind::kWrite,
                                 Kind::kWrite, Kind::kSync, Kind::kClose, Kind::kRename};
  REQUIRE(world.io.calls == wanted);
  REQUIRE(world.get(1));
  REQUIRE(world.files() == 1);
}

TEST_CASE("a page read in pieces is whole and a short one is a miss") {
  Pages world;
  REQUIRE(world.put(1));
  if (!world.let_go_of(1)) SKIP_TEST("the files of this system's folder for temporary ones lie in memory");
  world.io.calls.clear();
  world.io.max_bytes = 3000;
  REQUIRE(world.get(1));
  REQUIRE(std::ranges::count(world.io.calls, Kind::kRead) == 2 + 4);  // of the header, of the page
  REQUIRE(world.let_go_of(1));
  world.io.ends_at = kRecordBytes - 10;
  REQUIRE_FALSE(world.get(1));
  REQUIRE(world.counters.corrupt == 1);
  REQUIRE(world.files() == 0);
}

TEST_CASE("a put that fails at any step leaves nothing and can be rerun") {
  for (const Kind kind : {Kind::kOpen, Kind::kWrite, Kind::kSync, Kind::kClose, Kind::kRename}) {
    CAPTURE(static_cast<int>(kind));
    Pages world;
    {
      const CapturedLog log;
      world.io.failing = kind;
      REQUIRE_FALSE(world.put(1));
      REQUIRE_FALSE(world.put(2));
      REQUIRE(log.count("Input/output error") == 1);
    }
    REQUIRE(world.counters.errors == 2);
    REQUIRE(world.files() == 0);
    REQUIRE(world.sync.index().bytes() == 0);
    REQUIRE(world.sync.index().try_reserve(10 * kRecordBytes));
    world.sync.index().release(10 * kRecordBytes);
    world.io.failing.reset();
    REQUIRE(world.put(1));
    REQUIRE(world.get(1));
  }
}

TEST_CASE("a get that misses keeps a put that ended meanwhile") {
  Pages world;
  world.io.after_open = [&world] { REQUIRE(world.put(1)); };
  REQUIRE_FALSE(world.get(1));
  REQUIRE(world.sync.index().bytes() == kRecordBytes);
  REQUIRE(world.get(1));
}

TEST_CASE("a victim that cannot be removed stays and the put is refused") {
  Pages world;
  for (uint64_t number = 0; number < 10; ++number) REQUIRE(world.put(number));
  {
    const CapturedLog log;
    world.io.failing = Kind::kUnlink;
    REQUIRE_FALSE(world.put(10));
    REQUIRE(log.count("evicting") == 1);
  }
  world.io.failing.reset();
  REQUIRE(world.files() == 10);
  REQUIRE(world.sync.index().bytes() == 10 * kRecordBytes);
  REQUIRE(world.put(10));
  REQUIRE(world.files() == 10);
  REQUIRE_FALSE(world.get(0));
  REQUIRE(world.counters.evicted == 1);
}

TEST_CASE("a page that cannot be removed is passed over until it can") {
  Pages world;
  for (uint64_t number = 0; number < 10; ++number) REQUIRE(world.put(number));
  world.io.unremovable = {StoreFolder::page_name(make_key(0)), StoreFolder::page_name(make_key(2))};
  const CapturedLog log;
  for (uint64_t number = 10; number < 18; ++number) REQUIRE(world.put(number));
  REQUIRE(world.io.failed_removals == 2);  // each is tried once, not by every put
  REQUIRE(log.count("evicting") == 1);
  REQUIRE(world.counters.evicted == 8);
  REQUIRE(world.counters.errors == 2);
  REQUIRE(world.files() == 10);
  REQUIRE(world.sync.index().bytes() == 10 * kRecordBytes);
  REQUIRE(world.get(0));  // the use makes it the newest
  for (uint64_t number = 18; number < 26; ++number) REQUIRE(world.put(number));
  REQUIRE(world.io.failed_removals == 2);
  REQUIRE(world.put(26));  // page 0 is the oldest again, and passed over again
  REQUIRE(world.io.failed_removals == 3);
  world.io.unremovable.clear();
  world.sync.rescan();  // finds both, the oldest of all
  REQUIRE(world.put(27));
  REQUIRE(world.put(28));
  REQUIRE_FALSE(world.get(0));
  REQUIRE_FALSE(world.get(2));
  REQUIRE(world.files() == 10);
}

TEST_CASE("a put is refused when no page can be removed") {
  Pages world(200);
  for (uint64_t number = 0; number < 200; ++number) {
    REQUIRE(world.put(number));
    world.io.unremovable.insert(StoreFolder::page_name(make_key(number)));
  }
  const CapturedLog log;
  REQUIRE_FALSE(world.put(200));
  REQUIRE(world.io.failed_removals == 64);  // one put does not try them all
  REQUIRE(world.sync.index().bytes() == 200 * kRecordBytes);
  world.io.unremovable.erase(StoreFolder::page_name(make_key(70)));
  REQUIRE(world.put(200));  // goes on behind those
  REQUIRE(world.io.failed_removals == 70);
  REQUIRE_FALSE(world.get(70));
  REQUIRE(world.files() == 200);
}

TEST_CASE("a removed directory is recreated once without a log line") {
  Pages world;
  REQUIRE(world.put(1));
  const bool is_noticed_meanwhile = GENERATE(true, false);
  const CapturedLog log;
  world.io.before_open = [&] {
    fs::remove_all(world.sync.path());
    if (is_noticed_meanwhile) world.sync.repair();
  };
  REQUIRE_FALSE(world.put(2));
  world.sync.repair();
  REQUIRE(log.count("page store") == 1);
  REQUIRE(log.count("the directory was removed; it was created again") == 1);
  const auto writer = [&world] {
    std::string found;
    for (const auto& entry : fs::directory_iterator(world.sync.path() + "/tmp")) {
      if (entry.path().extension() == ".lock") found += entry.path().filename().string();
    }
    return found;
  };
  const std::string before = writer();
  REQUIRE_FALSE(before.empty());
  world.sync.repair();
  REQUIRE(writer() == before);
  REQUIRE(world.put(2));
  REQUIRE(world.get(2));
}
