#pragma once

#include <boost/asio/io_context.hpp>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "async/real_runtime.h"
#include "async/task_group.h"
#include "cache/store/page_record.h"
#include "cache/store/page_store.h"
#include "support/captured_log.h"

namespace millrace::test {

inline constexpr size_t kPageBytes = 10000;
inline constexpr size_t kRecordBytes = sizeof(cache::PageHeader) + kPageBytes;

[[nodiscard]] cache::StoreIdentity make_identity(std::string model = "model a");
/// Different for every number, spread over the folders.
[[nodiscard]] cache::PageKey make_key(uint64_t number);
/// Bytes that depend on the number alone.
[[nodiscard]] std::vector<std::byte> make_page(uint64_t number, size_t bytes = kPageBytes);

/// A folder of its own under the system's folder for such, gone with the object.
class TempFolder {
 public:
  TempFolder();
  ~TempFolder();
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;
  [[nodiscard]] std::string path() const { return path_.string(); }

 private:
  std::filesystem::path path_;
};

/// Polls until `condition` holds; fails the test when it does not for long.
void wait_until(const std::function<bool()>& condition);

/// A Runtime on this thread, on which the calls below run one operation, or many at once, to the end.
class StoreWorld {
 public:
  [[nodiscard]] async::Runtime& runtime() { return runtime_; }
  [[nodiscard]] asio::io_context& context() { return context_; }
  void run(asio::awaitable<void> task);

  /// Also requires that what comes back is make_page(number).
  [[nodiscard]] bool get(cache::PageStore& store, uint64_t number);
  [[nodiscard]] bool put(cache::PageStore& store, uint64_t number);
  [[nodiscard]] bool exists(cache::PageStore& store, uint64_t number);
  /// How many succeeded of `count` numbers from `first` on, all under way at once.
  [[nodiscard]] size_t get_all(cache::PageStore& store, uint64_t first, uint64_t count);
  [[nodiscard]] size_t put_all(cache::PageStore& store, uint64_t first, uint64_t count);
  /// Puts pages 0 to 299 into an empty store, requires that these come back and no others, and puts page 7 again.
  /// Returns the counts, which it checks as far as all stores have them.
  cache::StoreStats put_and_get_pages(cache::PageStore& store);

 private:
  asio::awaitable<void> get_one(cache::PageStore& store, uint64_t number, size_t& succeeded);
  asio::awaitable<void> put_one(cache::PageStore& store, uint64_t number, size_t& succeeded);
  asio::awaitable<void> join(async::TaskGroup& group);

  asio::io_context context_{1};
  async::RealRuntime runtime_{context_};
};

}  // namespace millrace::test
