#include "app/model_source.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/log.h"
#include "hub/model_fetcher.h"
#include "hub/partial_checkpoint.h"
#include "model/gguf_files.h"

namespace millrace::app {
namespace {

namespace fs = std::filesystem;

Result<hub::HubSettings> settings_of(const ModelRef& ref) {
  auto settings = hub::hub_settings();
  if (settings.has_error()) return settings.error();
  if (!ref.download_dir.empty()) {
    settings->cache = ref.download_dir;
    settings->partial = fs::path(ref.download_dir) / "millrace-partial";
  }
  if (!ref.token.empty()) settings->token = ref.token;
  return settings;
}

/// Returns whether a text can only be meant as a path. A revision or a file of a repository may have slashes, too.
bool is_path(const std::string& text) {
  return text.starts_with('/') || text.starts_with('.') || text.starts_with('~') || text.ends_with('/') ||
         std::ranges::count(std::string_view(text).substr(0, text.find(':')), '/') > 1;
}

ModelSource folder_source(const fs::path& folder) {
  const fs::path path = fs::absolute(folder).lexically_normal();
  return {.name = (path.has_filename() ? path : path.parent_path()).filename().string(),
          .folder = folder,
          .weights_folder = folder,
          .ranges = nullptr};
}

/// Returns a model in a GGUF file, by the file's name without its ending, or without the number of the part.
ModelSource file_source(const fs::path& path) {
  return {.name = model::gguf_model_name(path), .folder = path, .weights_folder = path, .ranges = nullptr};
}

/// Returns the snapshot of a model, or the first file of a GGUF model in it.
fs::path path_of(const hub::FetchedModel& model) {
  return model.is_gguf ? model.folder / model.weights.front().path : model.folder;
}

}  // namespace

Result<ModelSource> locate_model(const ModelRef& ref, WeightScope scope, const std::stop_token& stop) {
  std::error_code failure;
  if (fs::is_directory(ref.model, failure)) {
    const auto file = model::find_gguf(ref.model);
    if (file.has_error()) return make_error(file.error().code, "--model-path {}", file.error().message);
    return *file ? file_source(**file) : folder_source(ref.model);
  }
  if (model::is_gguf_path(ref.model) && fs::exists(ref.model, failure)) return file_source(ref.model);
  if (is_path(ref.model) || fs::exists(ref.model, failure))
    return make_error(ErrorCode::kNotFound, "--model-path {}: there is no such folder or GGUF file", ref.model);
  const auto repo = hub::parse_repo(ref.model, ref.revision);
  if (repo.has_error())
    return make_error(ErrorCode::kNotFound, "--model-path {}: there is no such folder, and {}", ref.model,
                      repo.error().message);
  auto settings = settings_of(ref);
  if (settings.has_error()) return settings.error();
  hub::ModelFetcher fetcher(*settings);
  const auto wanted = scope == WeightScope::kWhole ? hub::FetchScope::kAll : hub::FetchScope::kDescription;
  const auto model = fetcher.fetch(*repo, wanted, stop);
  if (model.has_error())
    return make_error(model.error().code, "--model-path {}: there is no such folder, and as a repository: {}",
                      ref.model, model.error().message);
  log::info("{} is commit {}", repo->to_string(), model->listing.commit);
  const fs::path path = path_of(*model);
  ModelSource source{.name = repo->id, .folder = path, .weights_folder = path, .ranges = nullptr};
  if (model->has_weights) return source;
  auto partial = hub::PartialCheckpoint::open(*settings, *repo, *model, stop);
  if (partial.has_error()) return partial.error();
  source.weights_folder = (*partial)->folder();
  if (model->is_gguf) source.folder = source.weights_folder = (*partial)->folder() / model->weights.front().path;
  source.ranges = *partial;
  return source;
}

Result<std::string> fetch_model(const ModelRef& ref) {
  const auto repo = hub::parse_repo(ref.model, ref.revision);
  if (repo.has_error()) return repo.error();
  auto settings = settings_of(ref);
  if (settings.has_error()) return settings.error();
  const auto model = hub::ModelFetcher(*settings).fetch(*repo, hub::FetchScope::kAll);
  if (model.has_error()) return model.error();
  return path_of(*model).string() + '\n';
}

Result<std::string> list_models(const ModelRef& ref) {
  const auto settings = settings_of(ref);
  if (settings.has_error()) return settings.error();
  constexpr size_t kShortCommit = 12;
  constexpr double kMega = 1e6;
  const auto revisions = hub::HubCache(settings->cache).list();
  if (revisions.empty()) return fmt::format("{}: holds no models\n", settings->cache.string());
  size_t width = 0;
  for (const hub::CachedRevision& each : revisions) width = std::max(width, each.id.size());
  std::string table;
  for (const hub::CachedRevision& each : revisions) {
    table +=
        fmt::format("{:<{}}  {}  {:>5} files  {:>10.1f} MB  {}\n", each.id, width, each.commit.substr(0, kShortCommit),
                    each.file_count, static_cast<double>(each.size_bytes) / kMega, fmt::join(each.refs, ", "));
  }
  return table;
}

}  // namespace millrace::app
