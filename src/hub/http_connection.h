#pragma once

#include <boost/asio/awaitable.hpp>
#include <boost/asio/ssl/context.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/core/tcp_stream.hpp>
#include <boost/beast/http/buffer_body.hpp>
#include <boost/beast/http/fields.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/ssl/ssl_stream.hpp>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "async/runtime.h"
#include "hub/settings.h"
#include "hub/url.h"

namespace millrace::hub {

/// Returns the authorities that servers' certificates are checked with. Error: kInvalidArgument for a file of them that
/// cannot be read.
[[nodiscard]] Result<std::shared_ptr<asio::ssl::context>> make_tls_context(const std::string& ca_file);

/// A GET or HEAD request.
struct HttpRequest {
  Url url;
  bool is_head = false;
  std::vector<std::pair<std::string, std::string>> headers;
};

/// The status and the header fields of a response.
struct HttpHead {
  unsigned status = 0;
  boost::beast::http::fields fields;
  std::optional<uint64_t> content_length;

  /// Returns a field's value, or an empty text.
  [[nodiscard]] std::string_view field(std::string_view name) const;
};

/// One connection to one origin, plain or TLS, directly or through a proxy, which is opened by the first request and
/// reused by later ones. Owned by a HubClient and used on its Runtime's executor by one coroutine at a time.
///
/// Everything throws ErrorException: kUnavailable when the server cannot be reached or breaks off, kTimeout after a
/// silence of the settings' timeout, kInvalidArgument when its certificate is not accepted, when the proxy refuses, or
/// when its variable cannot be used, which the constructor throws.
class HttpConnection {
 public:
  HttpConnection(async::Runtime& runtime, asio::ssl::context& tls, const HubSettings& settings, const Url& origin);

  /// Returns whether requests go to a proxy as they are, without encryption.
  [[nodiscard]] bool is_read_by_proxy() const { return proxy_ != nullptr && !origin_.is_tls; }
  /// Sends a request and waits for the head of its response. What is left of an earlier body is dropped with the
  /// connection.
  [[nodiscard]] asio::awaitable<HttpHead> request(HttpRequest request);
  /// Reads a part of the body; 0 bytes at its end.
  [[nodiscard]] asio::awaitable<size_t> read_some(std::span<std::byte> into);
  /// Reads the whole body. Throws kData beyond `limit` bytes.
  [[nodiscard]] asio::awaitable<std::string> read_text(size_t limit);

 private:
  using PlainStream = boost::beast::tcp_stream;
  using TlsStream = boost::beast::ssl_stream<PlainStream>;
  using Parser = boost::beast::http::response_parser<boost::beast::http::buffer_body>;

  [[nodiscard]] asio::awaitable<void> connect();
  /// Makes the proxy pass on what follows to the origin.
  [[nodiscard]] asio::awaitable<void> open_tunnel(PlainStream& stream);
  [[nodiscard]] std::string request_text(const HttpRequest& request) const;
  [[nodiscard]] asio::awaitable<void> agree_on_tls();
  [[nodiscard]] asio::awaitable<boost::system::error_code> exchange(const HttpRequest& request);
  /// Parses what has been received, or receives more until the parser gets further.
  [[nodiscard]] asio::awaitable<boost::system::error_code> parse_some();
  [[nodiscard]] PlainStream& socket() { return tls_stream_ ? tls_stream_->next_layer() : *plain_stream_; }
  [[nodiscard]] bool is_open() const { return tls_stream_ || plain_stream_; }
  void close();
  [[noreturn]] void fail(std::string_view what, const boost::system::error_code& error);

  async::Runtime& runtime_;
  asio::ssl::context& tls_;
  const std::chrono::milliseconds timeout_;
  const Url origin_;
  const Proxy* const proxy_;  ///< null: none
  std::unique_ptr<PlainStream> plain_stream_;
  std::unique_ptr<TlsStream> tls_stream_;
  boost::beast::flat_buffer buffer_;
  std::optional<Parser> parser_;  ///< of the response whose body is read
};

}  // namespace millrace::hub
