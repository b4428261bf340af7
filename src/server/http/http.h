#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "server/http/body_budget.h"

namespace millrace::server {

enum class Method : uint8_t { kGet, kHead, kPost, kPut, kPatch, kDelete, kOptions, kOther };

[[nodiscard]] std::string_view to_string(Method method);

/// The part of a request that the server uses; the parser drops the rest.
struct HttpRequest {
  Method method = Method::kOther;
  std::string path;   ///< percent-decoded, without the query
  std::string query;  ///< as sent, without '?'
  std::string authorization;
  std::string api_key;            ///< X-Api-Key
  std::string anthropic_version;  ///< Anthropic-Version, which Anthropic's clients send
  std::string content_type;
  std::string content_encoding;
  std::string request_id;  ///< X-Request-Id
  std::string host;
  std::string origin;      ///< Origin: the site of the page that has a browser send the request
  std::string upgrade;     ///< Upgrade: the protocol that the client would rather speak
  std::string fetch_site;  ///< Sec-Fetch-Site: how that site relates to this server
  std::string body;
  BodyBudget::Reservation body_reservation;  ///< the body's share of the budget
  bool http11 = true;
  bool keep_alive = true;
  bool expects_continue = false;

  void free_body() {
    body = std::string();
    body_reservation = {};
  }
};

using HttpHeaders = std::vector<std::pair<std::string, std::string>>;

struct HttpResponse {
  unsigned status = 200;
  std::string content_type = "application/json";
  std::string body;
  HttpHeaders headers;  ///< besides those that the connection writes: Server, Date, Content-Type, framing, Connection
};

/// Why a request could not be read.
struct HttpError {
  unsigned status = 400;
  std::string message;
};

/// Returns the reason phrase of `status`, as RFC 9110 words it.
[[nodiscard]] std::string_view status_text(unsigned status);
/// Returns `text` with '%41' as 'A'; malformed escapes stay as they are.
[[nodiscard]] std::string percent_decode(std::string_view text);
/// Returns whether two strings are equal, in a time that depends on their lengths only.
[[nodiscard]] bool equal_in_constant_time(std::string_view a, std::string_view b);

}  // namespace millrace::server
