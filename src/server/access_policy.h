#pragma once

#include <optional>
#include <string_view>

#include "server/http/http.h"
#include "server/openai/error.h"
#include "server/options.h"
#include "server/route.h"

namespace millrace::server {

/// Decides who may call a route: API keys, and pages of other sites. Owned by Api; plain code without state.
class AccessPolicy {
 public:
  explicit AccessPolicy(const ServerOptions& options) : options_(options) {}

  /// Returns 401 or 403 unless the sender of `head` may call a route of this access; `name` is for the message.
  [[nodiscard]] std::optional<openai::ApiError> check(const HttpRequest& head, Access access,
                                                      std::string_view name) const;
  /// Returns whether `head` carries a key that opens the admin's routes.
  [[nodiscard]] bool is_admin(const HttpRequest& head) const { return is_authorised(head, true); }

 private:
  /// The admin's key opens every route. Where there is one, no other key opens the admin's routes.
  [[nodiscard]] bool is_authorised(const HttpRequest& head, bool as_admin) const;
  /// Returns whether a page of neither this server nor the configured origin had a browser send the request.
  [[nodiscard]] bool is_cross_site(const HttpRequest& head) const;

  const ServerOptions& options_;
};

}  // namespace millrace::server
