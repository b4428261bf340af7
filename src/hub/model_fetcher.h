#pragma once

#include <filesystem>
#include <memory>
#include <stop_token>

#include "hub/blocking_run.h"
#include "hub/hub_cache.h"
#include "hub/hub_client.h"
#include "hub/settings.h"

namespace millrace::hub {

/// A model of a hub in the local cache.
struct FetchedModel {
  std::filesystem::path folder;  ///< the snapshot, with the description of the model
  RepoListing listing;
  std::vector<RepoFile> weights;  ///< the files with its tensors
  bool is_gguf = false;           ///< they are the parts of a GGUF model
  bool has_weights = false;       ///< all of them are in the snapshot
  bool is_listed = false;         ///< the listing is the repository's, not what the snapshot happens to hold
};

/// The files of a repository that are downloaded.
enum class FetchScope : uint8_t {
  kDescription,  ///< configuration, tokenizer, templates and the index of the weights
  kAll,          ///< these and the weights
};

/// Brings models from a hub into the cache, several files at once. Calls block; `stop` ends them with kAborted. Used on
/// one thread.
class ModelFetcher {
 public:
  explicit ModelFetcher(HubSettings settings) : settings_(std::move(settings)) {}

  /// Makes the files of a revision available. Files that the cache has are not downloaded. Without the network, and
  /// when the hub cannot be reached, the cache alone answers, if it has every file. A commit in the cache is also
  /// served when the hub refuses. Errors: those of hub_error(); kUnavailable when the hub cannot be reached and the
  /// cache lacks files; kData for contents that do not match.
  [[nodiscard]] Result<FetchedModel> fetch(const RepoRef& repo, FetchScope scope, const std::stop_token& stop = {});

  [[nodiscard]] const HubSettings& settings() const { return settings_; }

 private:
  [[nodiscard]] Result<FetchedModel> find_in_cache(const RepoRef& repo, FetchScope scope) const;
  [[nodiscard]] Result<void> ask_hub(const RepoRef& repo, FetchScope scope, std::chrono::seconds patience,
                                     FetchedModel& model, const std::stop_token& stop);
  [[nodiscard]] asio::awaitable<void> fetch_from_hub(async::Runtime& runtime, async::TaskGroup& workers,
                                                     const HubSettings& settings, const RepoRef& repo, FetchScope scope,
                                                     FetchedModel& model);
  [[nodiscard]] asio::awaitable<RepoListing> list(async::Runtime& runtime, const HubSettings& settings,
                                                  const RepoRef& repo);
  [[nodiscard]] asio::awaitable<void> fetch_files(async::Runtime& runtime, async::TaskGroup& workers,
                                                  const HubSettings& settings, const RepoRef& repo,
                                                  const std::string& commit, std::vector<RepoFile> files);

  const HubSettings settings_;
  std::shared_ptr<asio::ssl::context> tls_;
};

}  // namespace millrace::hub
