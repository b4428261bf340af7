#include "server/openai/error.h"

#include "base/json.h"
#include "base/log.h"

namespace millrace::server::openai {
namespace {

void append_text_or_null(JsonWriter& json, std::string_view key, std::string_view text) {
  json.key(key);
  if (text.empty()) {
    json.null();
  } else {
    json.value(text);
  }
}

}  // namespace

unsigned status_of(ErrorCode code) {
  switch (code) {
    case ErrorCode::kInvalidArgument: return 400;
    case ErrorCode::kNotFound: return 404;
    case ErrorCode::kConflict: return 409;
    case ErrorCode::kTooLarge: return 413;
    case ErrorCode::kExhausted: return 429;
    case ErrorCode::kUnavailable: return 503;
    case ErrorCode::kAborted: return 503;
    case ErrorCode::kTimeout: return 504;
    case ErrorCode::kData: return 500;
    case ErrorCode::kInternal: return 500;
  }
  return 500;
}

ApiError to_api_error(const Error& error, std::string_view param) {
  return ApiError{status_of(error.code), error.message, std::string(param)};
}

ApiError internal_error(const std::exception& failure) {
  log::error("a request failed: {}", failure.what());
  return ApiError{500, "internal error", ""};
}

std::string_view error_type(unsigned status) {
  switch (status) {
    case 401: return "authentication_error";
    case 404: return "not_found_error";
    case 429: return "rate_limit_error";
    default: return status >= 500 ? "server_error" : "invalid_request_error";
  }
}

std::string_view error_code(const ApiError& error) {
  if (!error.code.empty()) return error.code;
  switch (error.status) {
    case 401: return "invalid_api_key";
    case 429: return "rate_limit_exceeded";
    default: return {};
  }
}

void append_error(std::string& out, const ApiError& error) {
  JsonWriter json(out);
  json.begin_object().key("error").begin_object();
  json.member("message", error.message).member("type", error_type(error.status));
  append_text_or_null(json, "param", error.param);
  append_text_or_null(json, "code", error_code(error));
  json.end_object().end_object();
}

HttpResponse error_response(const ApiError& error) {
  HttpResponse response;
  response.status = error.status;
  append_error(response.body, error);
  if (error.status == 401) response.headers.emplace_back("WWW-Authenticate", "Bearer");
  if (error.status == 429 || error.status == 503) response.headers.emplace_back("Retry-After", "1");
  return response;
}

}  // namespace millrace::server::openai
