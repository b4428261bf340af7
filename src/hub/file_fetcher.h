#pragma once

#include <boost/asio/awaitable.hpp>

#include "hub/fetch_progress.h"
#include "hub/hub_api.h"
#include "hub/hub_cache.h"
#include "hub/hub_client.h"
#include "hub/retry.h"

namespace millrace::hub {

/// Downloads files of one commit into the cache, each as a blob with its link, one after another. Several fetchers
/// share the work. Owned by a ModelFetcher's coroutine, on its Runtime.
///
/// A download that was broken off goes on where it stopped, also in another process. Size and hash of the whole file
/// are checked before it appears in the cache.
class FileFetcher {
 public:
  FileFetcher(async::Runtime& runtime, HubClient& client, const HubSettings& settings, const HubCache& cache,
              const RepoRef& repo, const std::string& commit, FetchProgress& progress);

  /// Downloads a file unless its blob is there. Throws ErrorException: those of hub_error(); kData when the contents do
  /// not match size or hash, or cannot be written; kUnavailable or kTimeout after several attempts.
  [[nodiscard]] asio::awaitable<void> fetch(const RepoFile& file);

 private:
  struct Unfinished;
  [[nodiscard]] asio::awaitable<void> fetch_locked(const RepoFile& file);
  [[nodiscard]] asio::awaitable<void> resume(Unfinished& unfinished);
  [[nodiscard]] asio::awaitable<void> receive(const RepoFile& file, Unfinished& unfinished);
  [[nodiscard]] asio::awaitable<void> receive_once(const RepoFile& file, Unfinished& unfinished, Retry& retry);

  async::Runtime& runtime_;
  HubClient& client_;
  const HubSettings& settings_;
  const HubCache& cache_;
  const RepoRef& repo_;
  const std::string& commit_;
  FetchProgress& progress_;
};

}  // namespace millrace::hub
