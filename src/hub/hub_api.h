#pragma once

#include <boost/asio/awaitable.hpp>
#include <cstdint>
#include <string>
#include <vector>

#include "hub/hub_client.h"

namespace millrace::hub {

/// A file of a repository at one commit.
struct RepoFile {
  std::string path;  ///< within the repository: "tokenizer.json"
  uint64_t size_bytes = 0;
  /// The name of its blob: the SHA-256 of the contents of a file in large file storage, else the SHA-1 of the git blob.
  std::string etag;
};

/// The files of a repository at one commit.
struct RepoListing {
  std::string commit;  ///< 40 hexadecimal digits
  std::vector<RepoFile> files;

  /// Returns the file at `path`, or null.
  [[nodiscard]] const RepoFile* find(std::string_view path) const;
};

/// Returns whether a path of a listing stays inside the folder that it is put into.
[[nodiscard]] bool is_safe_path(std::string_view path);

/// Asks a hub for the commit of a revision and its files. Throws ErrorException: those of hub_error(), and kData for an
/// answer that is none. Requests that fail for a while are repeated.
[[nodiscard]] asio::awaitable<RepoListing> list_repo(async::Runtime& runtime, HubClient& client,
                                                     const HubSettings& settings, RepoRef repo);

}  // namespace millrace::hub
