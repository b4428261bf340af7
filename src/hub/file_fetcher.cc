#include "hub/file_fetcher.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <unistd.h>

#include <boost/asio/post.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <cerrno>
#include <cstring>
#include <vector>

#include "base/log.h"
#include "hub/content_digest.h"
#include "hub/file_lock.h"
#include "hub/retry.h"

namespace millrace::hub {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;

constexpr unsigned kOk = 200;
constexpr unsigned kPartialContent = 206;
constexpr unsigned kRangeNotSatisfiable = 416;
constexpr size_t kPieceBytes = 256 * 1024;
/// Time between two looks at a file that another process downloads.
constexpr auto kLockInterval = 500ms;

[[noreturn]] void fail_at(const fs::path& path, const char* what) {
  throw_error(ErrorCode::kData, fmt::format("{}: {}: {}", path.string(), what, std::strerror(errno)));
}

}  // namespace

/// The part of a file that has come, on the disk and in its digest.
struct FileFetcher::Unfinished {
  Unfinished(fs::path its_path, const RepoFile& its_file)
      : path(std::move(its_path)), file(its_file), digest(its_file.etag, its_file.size_bytes) {
    constexpr mode_t kMode = 0644;
    descriptor = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, kMode);
    if (descriptor < 0) fail_at(path, "cannot be created");
  }
  Unfinished(const Unfinished&) = delete;
  Unfinished& operator=(const Unfinished&) = delete;
  ~Unfinished() { close(descriptor); }

  /// Takes up a piece of what an earlier download has left; returns false when there is no more.
  bool resume(std::span<std::byte> piece) {
    const ssize_t count = pread(descriptor, piece.data(), piece.size(), static_cast<off_t>(bytes));
    if (count < 0) fail_at(path, "cannot be read");
    digest.add(piece.first(static_cast<size_t>(count)));
    bytes += static_cast<uint64_t>(count);
    if (bytes > file.size_bytes) start_over();
    return count > 0 && bytes > 0;
  }
  void start_over() {
    if (ftruncate(descriptor, 0) != 0) fail_at(path, "cannot be emptied");
    digest = ContentDigest(file.etag, file.size_bytes);
    bytes = 0;
  }
  void append(std::span<const std::byte> piece) {
    digest.add(piece);
    while (!piece.empty()) {
      const ssize_t count = pwrite(descriptor, piece.data(), piece.size(), static_cast<off_t>(bytes));
      if (count <= 0) fail_at(path, "cannot be written");
      bytes += static_cast<uint64_t>(count);
      piece = piece.subspan(static_cast<size_t>(count));
    }
  }

  const fs::path path;
  const RepoFile& file;
  ContentDigest digest;
  uint64_t bytes = 0;
  int descriptor = -1;
};

FileFetcher::FileFetcher(async::Runtime& runtime, HubClient& client, const HubSettings& settings, const HubCache& cache,
                         const RepoRef& repo, const std::string& commit, FetchProgress& progress)
    : runtime_(runtime),
      client_(client),
      settings_(settings),
      cache_(cache),
      repo_(repo),
      commit_(commit),
      progress_(progress) {}

asio::awaitable<void> FileFetcher::fetch(const RepoFile& file) {
  bool has_waited = false;
  for (;;) {
    const auto lock = FileLock::try_lock(cache_.lock_file(repo_, file));
    if (lock.has_error()) throw ErrorException(lock.error());
    if (lock->has_value()) {
      co_await fetch_locked(file);
      co_return;
    }
    if (!has_waited) log::info("{}: waiting for another process that downloads {}", repo_.id, file.path);
    has_waited = true;
    co_await async::sleep_for(runtime_, kLockInterval);
  }
}

asio::awaitable<void> FileFetcher::fetch_locked(const RepoFile& file) {
  const fs::path blob = cache_.blob(repo_, file);
  std::error_code failure;
  const bool is_there = fs::is_regular_file(blob, failure) && fs::file_size(blob, failure) == file.size_bytes;
  if (is_there) {
    progress_.add_present(file.size_bytes);
  } else {
    fs::create_directories(blob.parent_path(), failure);
    Unfinished unfinished(blob.string() + ".millrace.incomplete", file);
    co_await resume(unfinished);
    co_await receive(file, unfinished);
    fs::rename(unfinished.path, blob, failure);
    if (failure)
      throw_error(ErrorCode::kData, fmt::format("{}: cannot be created: {}", blob.string(), failure.message()));
  }
  const auto linked = cache_.link(repo_, commit_, file);
  if (linked.has_error()) throw ErrorException(linked.error());
}

asio::awaitable<void> FileFetcher::resume(Unfinished& unfinished) {
  std::vector<std::byte> piece(kPieceBytes);
  // Other downloads go on meanwhile.
  while (unfinished.resume(piece)) co_await asio::post(runtime_.executor(), asio::use_awaitable);
  progress_.add_present(unfinished.bytes);
}

asio::awaitable<void> FileFetcher::receive(const RepoFile& file, Unfinished& unfinished) {
  bool has_started_over = unfinished.bytes == 0;
  Retry retry(settings_.retry_delay, settings_.patience);
  for (;;) {
    while (unfinished.bytes < file.size_bytes) co_await receive_once(file, unfinished, retry);
    const std::string found = unfinished.digest.finish();
    if (found == file.etag) co_return;
    progress_.remove(unfinished.bytes);
    unfinished.start_over();
    if (has_started_over) {
      fs::remove(unfinished.path);
      throw_error(ErrorCode::kData,
                  fmt::format("{}: the hash of {} is {}, wanted {}", repo_.to_string(), file.path, found, file.etag));
    }
    log::warn("{}: what an earlier download left of {} is damaged; downloading it anew", repo_.id, file.path);
    has_started_over = true;
  }
}

asio::awaitable<void> FileFetcher::receive_once(const RepoFile& file, Unfinished& unfinished, Retry& retry) {
  Error problem;
  std::optional<std::chrono::seconds> asked;
  try {
    std::optional<HubClient::Range> range;
    if (unfinished.bytes > 0) range = HubClient::Range{.begin = unfinished.bytes};
    const HttpHead head = co_await client_.get(client_.file_url(repo_.id, commit_, file.path), range);
    const bool is_whole = head.status == kOk;
    if (head.status != kPartialContent && !is_whole && head.status != kRangeNotSatisfiable) {
      asked = retry_after(head);
      throw ErrorException(hub_error(head, settings_, repo_, file.path));
    }
    if (is_whole || head.status == kRangeNotSatisfiable) {
      progress_.remove(unfinished.bytes);
      unfinished.start_over();
      if (!is_whole)
        throw_error(ErrorCode::kUnavailable, fmt::format("{}: {} has no further bytes", repo_.id, file.path));
    }
    if (head.content_length && *head.content_length != file.size_bytes - unfinished.bytes)
      throw_error(ErrorCode::kData,
                  fmt::format("{}: the hub sends {} bytes of {} from byte {} on, wanted {}", repo_.to_string(),
                              *head.content_length, file.path, unfinished.bytes, file.size_bytes - unfinished.bytes));
    std::vector<std::byte> piece(kPieceBytes);
    while (const size_t count = co_await client_.read_some(piece)) {
      if (count > file.size_bytes - unfinished.bytes)
        throw_error(ErrorCode::kData, fmt::format("{}: the hub sends more than the {} bytes of {}", repo_.to_string(),
                                                  file.size_bytes, file.path));
      unfinished.append(std::span(piece).first(count));
      progress_.add(count);
      retry.note_progress();
    }
    if (unfinished.bytes == file.size_bytes) co_return;
    problem = make_error(ErrorCode::kUnavailable, "{}: the hub broke off {} after {} of {} bytes", repo_.id, file.path,
                         unfinished.bytes, file.size_bytes);
  } catch (const ErrorException& failure) {
    problem = failure.error();
  }
  co_await retry.wait(runtime_, std::move(problem), asked);
}

}  // namespace millrace::hub
