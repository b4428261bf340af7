#include "server/messages/error.h"

#include "base/json.h"

namespace millrace::server::messages {

std::string_view error_type(unsigned status) {
  switch (status) {
    case 401: return "authentication_error";
    case 402: return "billing_error";
    case 403: return "permission_error";
    case 404: return "not_found_error";
    case 413: return "request_too_large";
    case 429: return "rate_limit_error";
    case 503: return "overloaded_error";
    case 504: return "timeout_error";
    default: return status >= 500 ? "api_error" : "invalid_request_error";
  }
}

void append_error(std::string& out, const openai::ApiError& error) {
  JsonWriter json(out);
  json.begin_object().member("type", "error").key("error").begin_object();
  json.member("type", error_type(error.status)).member("message", error.message).end_object().end_object();
}

HttpResponse error_response(const openai::ApiError& error) {
  HttpResponse response = openai::error_response(error);
  response.body.clear();
  messages::append_error(response.body, error);
  return response;
}

}  // namespace millrace::server::messages
