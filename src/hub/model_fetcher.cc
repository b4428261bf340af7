#include "hub/model_fetcher.h"

#include <fmt/core.h>

#include <algorithm>
#include <deque>

#include "base/log.h"
#include "base/text_file.h"
#include "hub/file_fetcher.h"
#include "hub/gguf_choice.h"
#include "hub/model_files.h"
#include "hub/work_list.h"
#include "model/gguf_files.h"

namespace millrace::hub {
namespace {

/// Files that are downloaded at once: more would share the same line.
constexpr size_t kParallelFiles = 4;
/// How long a hub may make the process wait that could serve what is in the cache.
constexpr std::chrono::seconds kPatienceWithCache{60};

Result<std::string> read_index(const std::filesystem::path& folder) {
  return read_optional_text_file(folder / kIndexName);
}

void set_weights(FetchedModel& model, std::vector<RepoFile> weights) {
  model.weights = std::move(weights);
  model.is_gguf = names_gguf(model.weights.front().path);
}

}  // namespace

Result<FetchedModel> ModelFetcher::fetch(const RepoRef& repo, FetchScope scope, const std::stop_token& stop) {
  if (settings_.is_offline) {
    auto found = find_in_cache(repo, scope);
    if (found.has_error()) return make_error(found.error().code, "{} (HF_HUB_OFFLINE is set)", found.error().message);
    return found;
  }
  auto held = find_in_cache(repo, scope);
  // A commit never changes, so nothing is asked when every file is there. Another program may have fetched some of
  // them, without a list.
  const bool is_fixed = is_commit(repo.revision);
  if (is_fixed && held && held->is_listed) return held;
  FetchedModel model;
  const auto done = ask_hub(repo, scope, held ? kPatienceWithCache : settings_.patience, model, stop);
  if (done) return model;
  const ErrorCode code = done.error().code;
  const bool is_unreachable = code == ErrorCode::kUnavailable || code == ErrorCode::kTimeout;
  // Once the hub has listed the commit, its list decides which files are the model.
  const bool is_refused = is_fixed && !model.is_listed && code != ErrorCode::kAborted && code != ErrorCode::kData;
  const bool may_be_served = is_unreachable || is_refused;
  if (!held || !may_be_served) return done.error();
  log::warn("{}; using the revision in the cache, {}", done.error().message, held->listing.commit);
  return held;
}

Result<void> ModelFetcher::ask_hub(const RepoRef& repo, FetchScope scope, std::chrono::seconds patience,
                                   FetchedModel& model, const std::stop_token& stop) {
  if (!tls_) {
    auto made = make_tls_context(settings_.ca_file);
    if (made.has_error()) return made.error();
    tls_ = *made;
  }
  HubSettings settings = settings_;
  settings.patience = patience;
  return run_blocking(
      [&](async::Runtime& runtime, async::TaskGroup& workers) {
        return fetch_from_hub(runtime, workers, settings, repo, scope, model);
      },
      stop);
}

Result<FetchedModel> ModelFetcher::find_in_cache(const RepoRef& repo, FetchScope scope) const {
  const HubCache cache(settings_.cache);
  const auto commit = cache.find_commit(repo);
  if (!commit)
    return make_error(ErrorCode::kNotFound, "{}: {} does not hold it", repo.to_string(), settings_.cache.string());
  FetchedModel model{.folder = cache.snapshot(repo, *commit), .listing = {}, .weights = {}};
  const auto listing = cache.find_listing(repo, *commit);
  if (listing) {
    model.listing = *listing;
    model.is_listed = true;
    for (const RepoFile& file : description_files(*listing)) {
      if (!cache.contains(repo, *commit, file))
        return make_error(ErrorCode::kNotFound, "{}: its snapshot in the cache lacks {}", repo.to_string(), file.path);
    }
  } else {
    // Another program has filled the cache; which files there are is known by the snapshot alone.
    model.listing.commit = *commit;
    std::error_code failure;
    for (std::filesystem::recursive_directory_iterator at(model.folder, failure), end; !failure && at != end;
         at.increment(failure)) {
      if (!at->is_regular_file(failure)) continue;
      model.listing.files.push_back(
          {.path = at->path().lexically_relative(model.folder).string(), .size_bytes = at->file_size(failure)});
    }
    if (model.listing.find("config.json") == nullptr && !has_gguf(model.listing))
      return make_error(ErrorCode::kNotFound, "{}: its snapshot in the cache lacks config.json", repo.to_string());
  }
  const auto index = read_index(model.folder);
  if (index.has_error()) return index.error();
  const std::string_view holder = listing ? "the repository" : "its snapshot in the cache";
  auto weights = weight_files(model.listing, *index, repo.gguf, holder);
  if (weights.has_error()) return make_error(weights.error().code, "{}: {}", repo.to_string(), weights.error().message);
  set_weights(model, std::move(*weights));
  for (const RepoFile& file : model.weights) {
    model.has_weights = cache.contains(repo, *commit, file);
    if (!model.has_weights && scope == FetchScope::kAll)
      return make_error(ErrorCode::kNotFound, "{}: its snapshot in the cache lacks {}", repo.to_string(), file.path);
    if (!model.has_weights) break;
  }
  return model;
}

asio::awaitable<RepoListing> ModelFetcher::list(async::Runtime& runtime, const HubSettings& settings,
                                                const RepoRef& repo) {
  HubClient client(runtime, tls_, settings);
  auto listing = co_await list_repo(runtime, client, settings, repo);
  co_return listing;
}

asio::awaitable<void> ModelFetcher::fetch_from_hub(async::Runtime& runtime, async::TaskGroup& workers,
                                                   const HubSettings& settings, const RepoRef& repo, FetchScope scope,
                                                   FetchedModel& model) {
  const HubCache cache(settings.cache);
  model.listing = co_await list(runtime, settings, repo);
  model.is_listed = true;
  const std::string& commit = model.listing.commit;
  model.folder = cache.snapshot(repo, commit);
  co_await fetch_files(runtime, workers, settings, repo, commit, description_files(model.listing));
  const auto index = read_index(model.folder);
  if (index.has_error()) throw ErrorException(index.error());
  auto weights = weight_files(model.listing, *index, repo.gguf);
  if (weights.has_error())
    throw_error(weights.error().code, fmt::format("{}: {}", repo.to_string(), weights.error().message));
  set_weights(model, std::move(*weights));
  if (scope == FetchScope::kAll) co_await fetch_files(runtime, workers, settings, repo, commit, model.weights);
  model.has_weights =
      std::ranges::all_of(model.weights, [&](const RepoFile& file) { return cache.contains(repo, commit, file); });
  for (const auto& recorded : {cache.record_listing(repo, model.listing), cache.record_commit(repo, commit)}) {
    if (recorded.has_error()) log::warn("{}", recorded.error().message);
  }
}

asio::awaitable<void> ModelFetcher::fetch_files(async::Runtime& runtime, async::TaskGroup& workers,
                                                const HubSettings& settings, const RepoRef& repo,
                                                const std::string& commit, std::vector<RepoFile> files) {
  const HubCache cache(settings.cache);
  std::deque<RepoFile> missing;
  uint64_t total_bytes = 0;
  for (RepoFile& file : files) {
    if (cache.contains(repo, commit, file)) continue;
    total_bytes += file.size_bytes;
    missing.push_back(std::move(file));
  }
  if (missing.empty()) co_return;
  WorkList<RepoFile> work(std::move(missing));
  FetchProgress progress(repo.id, total_bytes, 0);
  std::deque<HubClient> clients;
  std::deque<FileFetcher> fetchers;
  const size_t fetcher_count = std::min(kParallelFiles, work.size());
  for (size_t i = 0; i < fetcher_count; ++i) {
    HubClient& client = clients.emplace_back(runtime, tls_, settings);
    FileFetcher& fetcher = fetchers.emplace_back(runtime, client, settings, cache, repo, commit, progress);
    workers.spawn("fetch files", work.take_in_turn([&fetcher](const RepoFile& file) { return fetcher.fetch(file); }));
  }
  co_await join_workers(workers);
  work.check();
}

}  // namespace millrace::hub
