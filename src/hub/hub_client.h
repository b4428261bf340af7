#pragma once

#include <map>
#include <memory>
#include <string>

#include "async/runtime.h"
#include "hub/http_connection.h"
#include "hub/repo_ref.h"
#include "hub/settings.h"

namespace millrace::hub {

/// Sends requests to a hub and follows its redirects. The token goes to the hub's origin only, and never through a
/// proxy that could read it. Owned by one coroutine, on its Runtime's executor; keeps a connection per origin.
///
/// Everything throws ErrorException, as HttpConnection does.
class HubClient {
 public:
  HubClient(async::Runtime& runtime, std::shared_ptr<asio::ssl::context> tls, const HubSettings& settings);

  /// A part of a file: bytes [begin, end), up to the file's end where `end` is 0.
  struct Range {
    uint64_t begin = 0;
    uint64_t end = 0;
  };
  /// Requests a URL, or bytes of it, and returns the head of the final response, whose body read_some() reads.
  [[nodiscard]] asio::awaitable<HttpHead> get(Url url, std::optional<Range> range = {});
  [[nodiscard]] asio::awaitable<size_t> read_some(std::span<std::byte> into);
  [[nodiscard]] asio::awaitable<std::string> read_text(size_t limit);

  /// Returns the URL of a file in a commit, or of the hub's API.
  [[nodiscard]] Url file_url(const std::string& repo, const std::string& commit, const std::string& path) const;
  [[nodiscard]] Url api_url(const std::string& path) const;

 private:
  [[nodiscard]] HttpConnection& connection_to(const Url& url);
  [[nodiscard]] bool has_token_for(const Url& url) const;

  async::Runtime& runtime_;
  const std::shared_ptr<asio::ssl::context> tls_;
  const HubSettings& settings_;
  std::map<std::string, std::unique_ptr<HttpConnection>> connections_;  // by origin
  HttpConnection* current_ = nullptr;                                   // the one that the last response comes from
};

/// Returns whether a request that was answered so may succeed later: 408, 429 and 5xx.
[[nodiscard]] bool is_temporary(unsigned status);
/// Returns the seconds that an answer wants before the next request, by RateLimit and Retry-After, or nothing.
[[nodiscard]] std::optional<std::chrono::seconds> retry_after(const HttpHead& head);
/// Returns why a hub refuses a request for a repository, or for a file of it, and what to do about it.
[[nodiscard]] Error hub_error(const HttpHead& head, const HubSettings& settings, const RepoRef& repo,
                              std::string_view file = {});

}  // namespace millrace::hub
