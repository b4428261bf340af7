#include "cache/store/abandoned_folders.h"

#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>

#include "cache/store/store_support.h"

using namespace millrace;
using namespace millrace::cache;
using namespace millrace::test;
using namespace std::chrono_literals;
namespace fs = std::filesystem;

namespace {

FileStoreOptions bounded_options(const TempFolder& folder, uint64_t max_pages) {
  FileStoreOptions options;
  options.path = folder.path();
  options.max_bytes = max_pages * kRecordBytes;
  return options;
}

fs::path folder_of(const TempFolder& folder, const StoreIdentity& identity) {
  return fs::path(folder.path()) / hash_of(identity).hex();
}

/// Numbers [first, first + count) under an identity whose server has ended since. Later numbers were used later.
void leave_pages(const TempFolder& folder, const StoreIdentity& identity, uint64_t first, uint64_t count) {
  StoreWorld world;
  {
    const auto store = open_file_store(world.runtime(), identity, bounded_options(folder, 1000)).value();
    REQUIRE(world.put_all(*store, first, count) == count);
  }
  for (uint64_t i = first; i < first + count; ++i) {
    const std::string digits = make_key(i).hex();
    const fs::path file = folder_of(folder, identity) / digits.substr(0, 2) / digits;
    fs::last_write_time(file, fs::file_time_type::clock::now() - 100h + i * 1s);
  }
  fs::last_write_time(folder_of(folder, identity) / "tmp", fs::file_time_type::clock::now() - 50h);
}

size_t page_count(const fs::path& folder) {
  size_t count = 0;
  if (!fs::exists(folder)) return 0;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    std::error_code gone;  // since it was listed, or a folder
    count += entry.file_size(gone) == kRecordBytes ? 1 : 0;
  }
  return count;
}

}  // namespace

TEST_CASE("abandoned folders go after their pages in order of last use") {
  const TempFolder folder;
  const StoreIdentity first = make_identity("first");
  const StoreIdentity second = make_identity("second");
  leave_pages(folder, first, 0, 4);
  leave_pages(folder, second, 2, 4);
  AbandonedFolders abandoned(folder.path(), hash_of(make_identity("own")), 24h);
  REQUIRE(abandoned.bytes() == 0);
  abandoned.scan();
  REQUIRE(abandoned.bytes() == 8 * kRecordBytes);
  for (int i = 0; i < 2; ++i) REQUIRE(abandoned.remove_oldest()->error == 0);
  REQUIRE(page_count(folder_of(folder, first)) == 2);
  REQUIRE(page_count(folder_of(folder, second)) == 4);
  for (int i = 0; i < 4; ++i) REQUIRE(abandoned.remove_oldest()->error == 0);
  REQUIRE_FALSE(fs::exists(folder_of(folder, first)));
  REQUIRE(page_count(folder_of(folder, second)) == 2);
  REQUIRE(abandoned.bytes() == 2 * kRecordBytes);
  for (int i = 0; i < 2; ++i) REQUIRE(abandoned.remove_oldest().has_value());
  REQUIRE_FALSE(abandoned.remove_oldest().has_value());
  REQUIRE(fs::is_empty(folder.path()));
}

TEST_CASE("a folder used now or lately or again is not abandoned") {
  const TempFolder folder;
  const StoreIdentity left = make_identity("left");
  leave_pages(folder, left, 0, 4);
  const auto bytes = [&](const StoreIdentity& own) {
    AbandonedFolders abandoned(folder.path(), hash_of(own), 24h);
    abandoned.scan();
    return abandoned.bytes();
  };
  REQUIRE(bytes(left) == 0);
  REQUIRE(bytes(make_identity("own")) == 4 * kRecordBytes);
  AbandonedFolders early(folder.path(), hash_of(make_identity("own")), 24h);
  early.scan();
  StoreWorld world;
  {
    const auto store = open_file_store(world.runtime(), left, bounded_options(folder, 1000)).value();
    fs::last_write_time(folder_of(folder, left) / "tmp", fs::file_time_type::clock::now() - 50h);
    REQUIRE(bytes(make_identity("own")) == 0);  // its lock is held
    REQUIRE_FALSE(early.remove_oldest().has_value());
    REQUIRE(early.bytes() == 0);
    REQUIRE(world.get_all(*store, 0, 4) == 4);
  }
  REQUIRE(bytes(make_identity("own")) == 0);  // it ended just now
  fs::create_directory(fs::path(folder.path()) / "something else");
  std::ofstream(fs::path(folder.path()) / std::string(32, 'a')).put('x');
  REQUIRE(bytes(make_identity("own")) == 0);
}

TEST_CASE("abandoned pages count towards the bound and go first") {
  const TempFolder folder;
  const StoreIdentity left = make_identity("left");
  leave_pages(folder, left, 0, 8);
  StoreWorld world;
  FileStoreOptions options = bounded_options(folder, 10);
  options.abandoned_after = 0s;
  const auto store = open_file_store(world.runtime(), make_identity(), options).value();
  REQUIRE(world.put_all(*store, 100, 6) == 6);
  wait_until([&] { return page_count(folder_of(folder, left)) == 4; });
  REQUIRE(world.put_all(*store, 200, 3) == 3);
  REQUIRE(page_count(folder_of(folder, left)) == 1);
  REQUIRE(world.put_all(*store, 300, 3) == 3);
  REQUIRE_FALSE(fs::exists(folder_of(folder, left)));
  REQUIRE(page_count(folder_of(folder, make_identity())) == 10);
  REQUIRE(store->stats().evicted == 10);
}
