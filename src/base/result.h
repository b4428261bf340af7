#pragma once

#include <fmt/core.h>

#include <boost/system/result.hpp>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

namespace millrace {

/// The kind of an Error. The server maps each to one HTTP status.
enum class [[nodiscard]] ErrorCode {
  kInvalidArgument,  ///< the caller's input is at fault (400)
  kNotFound,         ///< a named thing does not exist (404)
  kConflict,         ///< the current state does not allow it (409)
  kTooLarge,         ///< a size limit was exceeded (413)
  kExhausted,        ///< a bounded queue or pool is full (429)
  kUnavailable,      ///< not ready, or the ring is broken (503)
  kAborted,          ///< ended by its owner before it was complete
  kTimeout,          ///< a deadline passed
  kData,             ///< a file is malformed, truncated, or contradicts another
  kInternal,         ///< a fault of the server (500)
};

[[nodiscard]] std::string_view to_string(ErrorCode code);

/// An expected failure. The message names the thing, what was found and what was wanted.
struct [[nodiscard]] Error {
  ErrorCode code = ErrorCode::kInternal;
  std::string message;
};

/// An Error as an exception, for failures of the environment and for Result::value().
class ErrorException : public std::runtime_error {
 public:
  explicit ErrorException(Error error) : std::runtime_error(error.message), error_(std::move(error)) {}
  [[nodiscard]] const Error& error() const { return error_; }

 private:
  Error error_;
};

/// Throws `error`. Result::value() calls it through argument-dependent lookup.
[[noreturn]] inline void throw_exception_from_error(const Error& error, const boost::source_location&) {
  throw ErrorException(error);
}

/// A value or an Error; the caller must look. `value()` throws ErrorException on failure.
template <class T>
using Result = boost::system::result<T, Error>;

/// Throws ErrorException with this error.
[[noreturn]] inline void throw_error(ErrorCode code, std::string message) {
  throw ErrorException(Error{code, std::move(message)});
}

template <class... Args>
Error make_error(ErrorCode code, fmt::format_string<Args...> format, Args&&... args) {
  return Error{code, fmt::format(format, std::forward<Args>(args)...)};
}

}  // namespace millrace

/// Returns the Error of a Result expression, if it has one, from the enclosing function.
#define RETURN_IF_ERROR(expression)                                           \
  do {                                                                        \
    if (auto&& return_if_error_ = (expression); return_if_error_.has_error()) \
      return std::move(return_if_error_).error();                             \
  } while (false)
