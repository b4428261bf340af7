#include "server/http/http_parser.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>
#include <optional>

namespace millrace::server {
namespace {

namespace http = boost::beast::http;

Method to_method(http::verb verb) {
  switch (verb) {
    case http::verb::get: return Method::kGet;
    case http::verb::head: return Method::kHead;
    case http::verb::post: return Method::kPost;
    case http::verb::put: return Method::kPut;
    case http::verb::patch: return Method::kPatch;
    case http::verb::delete_: return Method::kDelete;
    case http::verb::options: return Method::kOptions;
    default: return Method::kOther;
  }
}

constexpr size_t kShortestChunkedEnd = 5;

/// Returns the bytes of the empty lines at the start.
size_t empty_lines(std::string_view text) {
  size_t length = 0;
  while (text.substr(length, 2) == "\r\n") length += 2;
  return length;
}

std::string to_std_string(boost::beast::string_view text) {
  return std::string(text.data(), text.size());
}

struct Target {
  std::optional<std::string> authority;  ///< of an absolute target
  std::string rest;                      ///< the path and the query
};

/// Splits the target of a request. An authority ends at a path, a query or a fragment (RFC 3986, section 3.2).
Target split_target(std::string target) {
  const size_t scheme_end = target.find_first_of(":/?#");
  const bool is_absolute =
      scheme_end != 0 && scheme_end != std::string::npos && target.compare(scheme_end, 3, "://") == 0;
  if (!is_absolute) return {.authority = std::nullopt, .rest = std::move(target)};
  const size_t begin = scheme_end + 3;
  const size_t end = std::min(target.find_first_of("/?#", begin), target.size());
  std::string rest = target.substr(end, target.find('#', end) - end);
  if (!rest.starts_with('/')) rest.insert(0, 1, '/');
  return {.authority = target.substr(begin, end - begin), .rest = std::move(rest)};
}

}  // namespace

struct HttpParser::Impl {
  http::request_parser<http::string_body> parser;
};

HttpParser::HttpParser(Limits limits) : impl_(std::make_unique<Impl>()), limits_(limits) {
  impl_->parser.header_limit(limits.header_bytes);
  impl_->parser.body_limit(limits.body_bytes);
}

HttpParser::~HttpParser() = default;

bool HttpParser::complete() const {
  return impl_->parser.is_done();
}

size_t HttpParser::announced_body_bytes() const {
  return impl_->parser.content_length().value_or(0);
}

size_t HttpParser::body_bytes() const {
  return impl_->parser.get().body().size();
}

HttpParser::State HttpParser::feed(std::string& buffer) {
  auto& parser = impl_->parser;
  size_t consumed = 0;
  State state = State::kNeedMore;
  if (!parser.got_some()) {
    buffer.erase(0, empty_lines(buffer));  // some clients end a body with one
    if (buffer == "\r") return state;
  }
  while (consumed < buffer.size() && !parser.is_done()) {
    // Beast looks at a last chunk's "0\r\n" again and asserts that the five bytes of an end are there by then.
    if (parser.is_header_done() && parser.chunked() && buffer.size() - consumed < kShortestChunkedEnd) break;
    boost::beast::error_code failure;
    const size_t taken =
        parser.put(boost::asio::const_buffer(buffer.data() + consumed, buffer.size() - consumed), failure);
    consumed += taken;
    if (failure == http::error::need_more) break;
    if (failure == http::error::header_limit) {
      return fail(431,
                  fmt::format("the request header is longer than {} bytes (--max-header-kib)", limits_.header_bytes));
    }
    if (failure == http::error::body_limit) {
      return fail(413, fmt::format("the request body is longer than {} bytes (--max-body-mib)", limits_.body_bytes));
    }
    if (failure) return fail(400, fmt::format("malformed HTTP request: {}", failure.message()));
    if (parser.is_header_done() && !head_reported_) {
      if (const char* fault = fault_of_head(); fault != nullptr) {
        return fail(400, fmt::format("malformed HTTP request: {}", fault));
      }
      head_reported_ = true;
      read_head();
      parser.eager(true);
      state = State::kHead;
      break;
    }
    if (taken == 0) break;
  }
  buffer.erase(0, consumed);
  if (state == State::kHead) return state;
  if (parser.is_done()) return State::kDone;
  // Beast takes all of a body, except the beginning of a chunk's header or of the trailer.
  if (parser.is_header_done() && buffer.size() > limits_.header_bytes) {
    return fail(431, fmt::format("a chunk's header or the trailer is longer than {} bytes (--max-header-kib)",
                                 limits_.header_bytes));
  }
  return State::kNeedMore;
}

HttpParser::State HttpParser::fail(unsigned status, std::string message) {
  failure_ = {status, std::move(message)};
  return State::kFailed;
}

const char* HttpParser::fault_of_head() const {
  const auto& message = impl_->parser.get();
  const auto coding_count = message.count(http::field::transfer_encoding);
  if (coding_count > 1 || (coding_count == 1 && !impl_->parser.chunked())) {
    // The end of such a body is unknown (RFC 9112, section 6.3).
    return "the transfer encoding does not end in chunked";
  }
  if (coding_count == 1 && message.version() < 11) return "HTTP/1.0 has no transfer encodings";
  // A proxy that takes another one for the host would cache or route the answer elsewhere (section 3.2).
  const auto host_count = message.count(http::field::host);
  if (host_count > 1) return "it has several Host headers, wanted one";
  if (host_count == 0 && message.version() >= 11) return "the header Host is missing";
  const Target target = split_target(to_std_string(message.target()));
  if (target.authority && target.authority->empty()) return "its absolute target names no host";
  return nullptr;
}

void HttpParser::read_head() {
  const auto& message = impl_->parser.get();
  request_.method = to_method(message.method());
  const auto [authority, target] = split_target(to_std_string(message.target()));
  const size_t question = target.find('?');
  request_.path = percent_decode(std::string_view(target).substr(0, question));
  if (question != std::string::npos) request_.query = target.substr(question + 1);
  request_.authorization = to_std_string(message[http::field::authorization]);
  request_.api_key = to_std_string(message["X-Api-Key"]);
  request_.anthropic_version = to_std_string(message["Anthropic-Version"]);
  request_.content_type = to_std_string(message[http::field::content_type]);
  request_.content_encoding = to_std_string(message[http::field::content_encoding]);
  request_.request_id = to_std_string(message["X-Request-Id"]);
  request_.host = authority ? *authority : to_std_string(message[http::field::host]);  // the target counts more
  request_.origin = to_std_string(message[http::field::origin]);
  request_.fetch_site = to_std_string(message["Sec-Fetch-Site"]);
  request_.upgrade = to_std_string(message[http::field::upgrade]);
  request_.http11 = message.version() >= 11;
  request_.keep_alive = message.keep_alive();
  request_.expects_continue = boost::beast::iequals(message[http::field::expect], "100-continue") && request_.http11;
}

HttpRequest HttpParser::take() {
  request_.body = std::move(impl_->parser.get().body());
  return std::move(request_);
}

}  // namespace millrace::server
