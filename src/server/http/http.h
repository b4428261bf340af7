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

/// What the front needs to know of a request; the parser has dropped the rest.
struct HttpRequest {
  Method method = Method::kOther;
  std::string path;   ///< percent-decoded, without the query
  std::string query;  ///< as sent, without '?'
  std::string authorization;
  std::string content_type;
  std::string content_encoding;
  std::string request_id;  ///< X-Request-Id
  std::string host;
  std::string origin;      ///< of the page that has a browser send this
  std::string fetch_site;  ///< Sec-Fetch-Site: where that page is from, seen from here
  std::string body;
  BodyBudget::Reservation body_reservation;  ///< what the body takes of the front's budget
  bool http11 = true;
  bool keep_alive = true;
  bool expects_continue = false;

  void free_body() {
    body = std::string();
    body_reservation = {};
  }
};

struct HttpResponse {
  unsigned status = 200;
  std::string content_type = "application/json";
  std::string body;
  std::vector<std::pair<std::string, std::string>> headers;
};

/// How the bytes after the head are delimited.
enum class BodyFraming : uint8_t { kLength, kChunked, kUntilClose };

[[nodiscard]] std::string_view status_text(unsigned status);
/// Appends status line and header section, with the empty line. `content_length` matters for kLength only.
void append_head(std::string& out, const HttpResponse& response, BodyFraming framing, size_t content_length,
                 bool keep_alive, bool http11);
/// '%41' to 'A'; malformed escapes stay as they are.
[[nodiscard]] std::string percent_decode(std::string_view text);
/// True for equal strings, in a time that depends on the lengths only.
[[nodiscard]] bool equal_in_constant_time(std::string_view a, std::string_view b);

}  // namespace millrace::server
