#include "hub/hub_cache.h"

#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <map>

#include "base/json.h"
#include "base/json_value.h"
#include "base/text_file.h"

namespace millrace::hub {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kModelPrefix = "models--";
constexpr std::string_view kSeparator = "--";

/// Returns the name of a repository's folder: "models--ORG--NAME".
std::string folder_name(const std::string& id) {
  std::string name(kModelPrefix);
  for (const char c : id) c == '/' ? name += kSeparator : name += c;
  return name;
}

/// Returns the id of a repository by the name of its folder.
std::string id_of(std::string_view name) {
  std::string id(name.substr(kModelPrefix.size()));
  if (const size_t at = id.find(kSeparator); at != std::string::npos) id.replace(at, kSeparator.size(), "/");
  return id;
}

/// Returns the revisions below a folder of refs, by commit. Slashes in their names are folders.
std::multimap<std::string, std::string> read_refs(const fs::path& folder) {
  std::multimap<std::string, std::string> refs;
  std::error_code failure;
  for (fs::recursive_directory_iterator at(folder, failure), end; !failure && at != end; at.increment(failure)) {
    if (!at->is_regular_file(failure)) continue;
    const auto commit = read_text_file(at->path());
    if (commit) refs.emplace(*commit, at->path().lexically_relative(folder).string());
  }
  return refs;
}

}  // namespace

Result<void> write_whole_file(const fs::path& path, std::string_view text) {
  std::error_code failure;
  fs::create_directories(path.parent_path(), failure);
  const fs::path temporary = path.string() + '.' + std::to_string(getpid()) + ".new";
  std::ofstream file(temporary, std::ios::binary);
  file << text;
  file.close();
  if (file) {
    fs::rename(temporary, path, failure);
    if (!failure) return {};
  }
  std::error_code ignored;
  fs::remove(temporary, ignored);
  return make_error(ErrorCode::kData, "{}: cannot be written{}", path.string(),
                    failure ? ": " + failure.message() : std::string());
}

fs::path HubCache::repo_folder(const RepoRef& repo) const {
  return folder_ / folder_name(repo.id);
}

fs::path HubCache::snapshot(const RepoRef& repo, const std::string& commit) const {
  return repo_folder(repo) / "snapshots" / commit;
}

fs::path HubCache::blob(const RepoRef& repo, const RepoFile& file) const {
  return repo_folder(repo) / "blobs" / file.etag;
}

fs::path HubCache::lock_file(const RepoRef& repo, const RepoFile& file) const {
  return folder_ / ".locks" / folder_name(repo.id) / (file.etag + ".lock");
}

std::optional<std::string> HubCache::find_commit(const RepoRef& repo) const {
  if (is_commit(repo.revision)) return repo.revision;
  const auto commit = read_text_file(repo_folder(repo) / "refs" / repo.revision);
  if (commit.has_error() || !is_commit(*commit)) return std::nullopt;
  return *commit;
}

Result<void> HubCache::record_commit(const RepoRef& repo, const std::string& commit) const {
  if (is_commit(repo.revision)) return {};
  return write_whole_file(repo_folder(repo) / "refs" / repo.revision, commit);
}

Result<void> HubCache::record_listing(const RepoRef& repo, const RepoListing& listing) const {
  std::string text;
  JsonWriter json(text);
  json.begin_array();
  for (const RepoFile& file : listing.files) {
    json.begin_object().member("type", "file").member("path", file.path).member("size", file.size_bytes);
    json.member("oid", file.etag).end_object();
  }
  json.end_array();
  return write_whole_file(repo_folder(repo) / "millrace" / (listing.commit + ".json"), text);
}

std::optional<RepoListing> HubCache::find_listing(const RepoRef& repo, const std::string& commit) const {
  const auto text = read_text_file(repo_folder(repo) / "millrace" / (commit + ".json"));
  if (text.has_error()) return std::nullopt;
  const auto document = JsonDocument::parse(*text);
  JsonArray entries;
  if (document.has_error() || !document->root().get(entries)) return std::nullopt;
  RepoListing listing{.commit = commit, .files = {}};
  for (const JsonValue entry : entries) {
    RepoFile file;
    std::string_view path;
    std::string_view etag;
    if (!entry["path"].get(path) || !entry["size"].get(file.size_bytes) || !entry["oid"].get(etag) ||
        !is_safe_path(path))
      return std::nullopt;
    file.path = path;
    file.etag = etag;
    listing.files.push_back(std::move(file));
  }
  return listing;
}

bool HubCache::contains(const RepoRef& repo, const std::string& commit, const RepoFile& file) const {
  std::error_code failure;
  const fs::path path = snapshot(repo, commit) / file.path;
  return fs::is_regular_file(path, failure) && fs::file_size(path, failure) == file.size_bytes && !failure;
}

Result<void> HubCache::link(const RepoRef& repo, const std::string& commit, const RepoFile& file) const {
  const fs::path path = snapshot(repo, commit) / file.path;
  const fs::path target = blob(repo, file);
  std::error_code failure;
  fs::create_directories(path.parent_path(), failure);
  fs::path temporary = path;
  temporary += '.' + std::to_string(getpid()) + ".new";
  fs::create_symlink(target.lexically_relative(path.parent_path()), temporary, failure);
  if (failure) {
    fs::rename(target, path, failure);
  } else {
    fs::rename(temporary, path, failure);
  }
  if (failure) return make_error(ErrorCode::kData, "{}: cannot be created: {}", path.string(), failure.message());
  return {};
}

std::vector<CachedRevision> HubCache::list() const {
  std::vector<CachedRevision> all;
  std::error_code failure;
  for (fs::directory_iterator repo(folder_, failure), end; !failure && repo != end; repo.increment(failure)) {
    const std::string name = repo->path().filename().string();
    if (!name.starts_with(kModelPrefix)) continue;
    const auto refs = read_refs(repo->path() / "refs");
    std::error_code none;
    for (fs::directory_iterator at(repo->path() / "snapshots", none); !none && at != end; at.increment(none)) {
      CachedRevision revision{.id = id_of(name), .commit = at->path().filename().string()};
      const auto [first, last] = refs.equal_range(revision.commit);
      for (auto ref = first; ref != last; ++ref) revision.refs.push_back(ref->second);
      std::error_code skipped;
      for (fs::recursive_directory_iterator file(at->path(), skipped), none_left; !skipped && file != none_left;
           file.increment(skipped)) {
        std::error_code gone;
        if (!file->is_regular_file(gone)) continue;
        revision.size_bytes += file->file_size(gone);
        ++revision.file_count;
      }
      all.push_back(std::move(revision));
    }
  }
  std::ranges::sort(all, {}, [](const CachedRevision& each) { return std::tie(each.id, each.commit); });
  return all;
}

}  // namespace millrace::hub
