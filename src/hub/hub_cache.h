#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "hub/hub_api.h"
#include "hub/repo_ref.h"

namespace millrace::hub {

/// A revision in the cache.
struct CachedRevision {
  std::string id;
  std::string commit;
  std::vector<std::string> refs;  ///< branches and tags that point to the commit
  uint64_t size_bytes = 0;        ///< of its files
  size_t file_count = 0;
};

/// The folder in which Python's huggingface_hub keeps repositories: refs/REVISION holds a commit, and
/// snapshots/COMMIT/PATH links to blobs/ETAG. Each library uses what the other has downloaded. millrace/COMMIT.json is
/// added, which lists the files of a commit. Plain code over the file system; safe in several processes, since every
/// file appears by a rename.
class HubCache {
 public:
  explicit HubCache(std::filesystem::path folder) : folder_(std::move(folder)) {}

  [[nodiscard]] const std::filesystem::path& folder() const { return folder_; }
  [[nodiscard]] std::filesystem::path snapshot(const RepoRef& repo, const std::string& commit) const;
  [[nodiscard]] std::filesystem::path blob(const RepoRef& repo, const RepoFile& file) const;
  /// Returns the file whose lock whoever downloads a blob holds.
  [[nodiscard]] std::filesystem::path lock_file(const RepoRef& repo, const RepoFile& file) const;

  /// Returns the commit of a revision, if the cache knows it.
  [[nodiscard]] std::optional<std::string> find_commit(const RepoRef& repo) const;
  /// Records the commit of a revision. Error: kData when it cannot be written.
  [[nodiscard]] Result<void> record_commit(const RepoRef& repo, const std::string& commit) const;
  /// Records which files a commit has, so that find_listing() knows them without the hub.
  [[nodiscard]] Result<void> record_listing(const RepoRef& repo, const RepoListing& listing) const;
  [[nodiscard]] std::optional<RepoListing> find_listing(const RepoRef& repo, const std::string& commit) const;

  /// Returns whether the snapshot has the file with all of its bytes.
  [[nodiscard]] bool contains(const RepoRef& repo, const std::string& commit, const RepoFile& file) const;
  /// Makes the snapshot's link to a blob that is there. Where the file system has no links, the blob moves there.
  [[nodiscard]] Result<void> link(const RepoRef& repo, const std::string& commit, const RepoFile& file) const;

  /// Returns every revision of every model, by name.
  [[nodiscard]] std::vector<CachedRevision> list() const;

 private:
  [[nodiscard]] std::filesystem::path repo_folder(const RepoRef& repo) const;

  std::filesystem::path folder_;
};

/// Writes a file by way of a temporary one in its folder, so that it is whole whenever it is seen. Creates its folders.
/// Error: kData.
[[nodiscard]] Result<void> write_whole_file(const std::filesystem::path& path, std::string_view text);

}  // namespace millrace::hub
