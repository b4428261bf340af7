#pragma once

#include <fmt/core.h>

#include <boost/system/result.hpp>
#include <string>
#include <string_view>

#include "base/result.h"
#include "server/http/http.h"

namespace millrace::server::openai {

/// An error as OpenAI's clients expect it.
struct [[nodiscard]] ApiError {
  ApiError() = default;
  ApiError(unsigned http_status, std::string text, std::string field)
      : status(http_status), message(std::move(text)), param(std::move(field)) {}

  unsigned status = 400;
  std::string message;
  std::string param;      ///< the field at fault; empty: none
  std::string_view code;  ///< a literal, as OpenAI names the fault; empty: what the status says
};

[[noreturn]] inline void throw_exception_from_error(const ApiError& error, const boost::source_location&) {
  throw ErrorException(Error{ErrorCode::kInvalidArgument, error.message});
}

template <class T>
using ApiResult = boost::system::result<T, ApiError>;

template <class... Args>
ApiError bad_request(std::string_view param, fmt::format_string<Args...> format, Args&&... args) {
  return ApiError{400, fmt::format(format, std::forward<Args>(args)...), std::string(param)};
}

/// Returns the HTTP status of an ErrorCode.
[[nodiscard]] unsigned status_of(ErrorCode code);
[[nodiscard]] ApiError to_api_error(const Error& error, std::string_view param = {});
/// Logs `failure`, and returns a 500 that does not name it: the text may be none of the client's business.
[[nodiscard]] ApiError internal_error(const std::exception& failure);
/// Returns OpenAI's error type of a status, e.g. "invalid_request_error".
[[nodiscard]] std::string_view error_type(unsigned status);

/// Returns OpenAI's code of the error, e.g. "invalid_api_key"; empty: it has none.
[[nodiscard]] std::string_view error_code(const ApiError& error);

/// Appends {"error":{…}}.
void append_error(std::string& out, const ApiError& error);
[[nodiscard]] HttpResponse error_response(const ApiError& error);
/// Words an error as the clients of one API expect it.
using ErrorDialect = HttpResponse (*)(const ApiError&);

}  // namespace millrace::server::openai
