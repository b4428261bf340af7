#include "server/access_policy.h"

#include <boost/algorithm/string/predicate.hpp>
#include <span>

namespace millrace::server {
namespace {

/// Returns the key of the header Authorization; empty where it has none.
std::string_view bearer_key(const HttpRequest& head) {
  constexpr std::string_view kScheme = "bearer ";
  if (!boost::algorithm::istarts_with(head.authorization, kScheme)) return {};
  return std::string_view(head.authorization).substr(kScheme.size());
}

/// Returns whether the request carries one of `keys` in either header, after comparing with all of them. An empty key
/// matches nothing.
bool has_key(const HttpRequest& head, std::span<const std::string> keys) {
  bool found = false;
  for (const std::string_view given : {bearer_key(head), std::string_view(head.api_key)}) {
    for (const std::string& key : keys) {
      const bool is_equal = equal_in_constant_time(given, key);
      found = found || (is_equal && !key.empty());
    }
  }
  return found;
}

}  // namespace

bool AccessPolicy::is_authorised(const HttpRequest& head, bool as_admin) const {
  if (has_key(head, {&options_.admin_api_key, 1})) return true;
  if (as_admin && !options_.admin_api_key.empty()) return false;
  return options_.api_keys.empty() || has_key(head, options_.api_keys);
}

bool AccessPolicy::is_cross_site(const HttpRequest& head) const {
  if (!head.origin.empty() && head.origin == options_.cors_origin) return false;
  if (!head.fetch_site.empty()) return head.fetch_site != "same-origin" && head.fetch_site != "none";
  const size_t scheme = head.origin.find("://");
  return !head.origin.empty() &&
         (scheme == std::string::npos || !boost::algorithm::iequals(head.origin.substr(scheme + 3), head.host));
}

std::optional<openai::ApiError> AccessPolicy::check(const HttpRequest& head, Access access,
                                                    std::string_view name) const {
  if (access != Access::kPublic && !is_authorised(head, access == Access::kAdmin)) {
    return openai::ApiError{401, "the API key is missing or wrong", ""};
  }
  // Where a key is wanted, a page of another site has none to send.
  const bool is_open = options_.api_keys.empty() && options_.admin_api_key.empty();
  const bool is_same_site_only = access == Access::kAdmin || access == Access::kClientSameSite;
  if (is_same_site_only && is_open && is_cross_site(head)) {
    return openai::ApiError{
        403, fmt::format("{} takes no requests from pages of other sites (--cors-origin, --api-key)", name), ""};
  }
  return std::nullopt;
}

}  // namespace millrace::server
