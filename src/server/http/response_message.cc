#include "server/http/response_message.h"

#include <fmt/format.h>

#include <array>
#include <ctime>

namespace millrace::server {
namespace {

namespace http = boost::beast::http;

std::string http_date() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  gmtime_r(&now, &parts);
  static constexpr std::array kDays = {"Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat"};
  static constexpr std::array kMonths = {"Jan", "Feb", "Mar", "Apr", "May", "Jun",
                                         "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"};
  return fmt::format("{}, {:02} {} {} {:02}:{:02}:{:02} GMT", kDays[static_cast<size_t>(parts.tm_wday)], parts.tm_mday,
                     kMonths[static_cast<size_t>(parts.tm_mon)], parts.tm_year + 1900, parts.tm_hour, parts.tm_min,
                     parts.tm_sec);
}

void fill_head(http::response_header<>& head, const HttpResponse& response) {
  head.version(11);
  head.result(response.status);
  // Beast words some statuses as older RFCs did, and does not know 499.
  const std::string_view reason = status_text(response.status);
  head.reason({reason.data(), reason.size()});
  head.set(http::field::server, "millrace/" MILLRACE_VERSION);
  head.set(http::field::date, http_date());
  if (!response.content_type.empty() && response.status != 204) {
    head.set(http::field::content_type, response.content_type);
  }
  for (const auto& [name, value] : response.headers) head.insert(name, value);
}

template <class Message>
void set_framing(Message& message, unsigned status, BodyFraming framing, size_t content_length,
                 ConnectionHeader connection) {
  if (framing == BodyFraming::kChunked) {
    message.chunked(true);
  } else if (framing == BodyFraming::kLength && status != 204) {
    message.content_length(content_length);
  }
  if (!connection.keep_alive) {
    message.set(http::field::connection, "close");
  } else if (!connection.http11) {
    message.set(http::field::connection, "keep-alive");
  }
}

}  // namespace

ResponseMessage make_message(const HttpResponse& response, ConnectionHeader connection) {
  ResponseMessage message;
  fill_head(message, response);
  message.body() = {response.body.data(), response.body.size()};
  set_framing(message, response.status, BodyFraming::kLength, response.body.size(), connection);
  return message;
}

ResponseHead make_head(const HttpResponse& response, BodyFraming framing, ConnectionHeader connection) {
  ResponseHead head;
  fill_head(head, response);
  set_framing(head, response.status, framing, response.body.size(), connection);
  return head;
}

}  // namespace millrace::server
