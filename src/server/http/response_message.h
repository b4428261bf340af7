#pragma once

#include <boost/beast/http/empty_body.hpp>
#include <boost/beast/http/message.hpp>
#include <boost/beast/http/span_body.hpp>

#include "server/http/http.h"

namespace millrace::server {

/// How the bytes after the head are delimited.
enum class BodyFraming : uint8_t { kLength, kChunked, kUntilClose };

struct ConnectionHeader {
  bool keep_alive = false;
  bool http11 = true;  ///< the client's version
};

/// Beast's form of a response whose body is `response.body`, which must outlive it.
using ResponseMessage = boost::beast::http::response<boost::beast::http::span_body<const char>>;
/// Beast's form of a response's head alone.
using ResponseHead = boost::beast::http::response<boost::beast::http::empty_body>;

[[nodiscard]] ResponseMessage make_message(const HttpResponse& response, ConnectionHeader connection);
/// Returns the head of `response`, for HEAD (kLength) or before a stream.
[[nodiscard]] ResponseHead make_head(const HttpResponse& response, BodyFraming framing, ConnectionHeader connection);

}  // namespace millrace::server
