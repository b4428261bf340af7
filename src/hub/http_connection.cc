#include "hub/http_connection.h"

#include <arpa/inet.h>
#include <fmt/core.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>

#include <algorithm>
#include <array>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/core/buffers_to_string.hpp>
#include <boost/beast/core/error.hpp>
#include <boost/beast/http/message.hpp>

namespace millrace::hub {
namespace {

namespace beast = boost::beast;
namespace http = boost::beast::http;
using asio::redirect_error;
using asio::use_awaitable;
using boost::system::error_code;

// Beast serializes and parses, and bytes move here: its operations on whole messages exist once per stream type and
// operation, which takes the compiler ten seconds.
constexpr unsigned kHttp11 = 11;
constexpr uint32_t kMaxHeaderBytes = 64 * 1024;
constexpr size_t kReadBytes = 64 * 1024;

bool is_address(const std::string& host) {
  in6_addr address{};
  return inet_pton(AF_INET, host.c_str(), &address) == 1 || inet_pton(AF_INET6, host.c_str(), &address) == 1;
}

const Proxy* find_proxy(const HubSettings& settings, const Url& origin) {
  const auto proxy = settings.proxies.find(origin);
  if (proxy.has_error()) throw ErrorException(proxy.error());
  return *proxy;
}

/// Returns the first line of what is no answer of a proxy, fit to be shown.
std::string first_line(std::string_view text) {
  constexpr size_t kMaxShown = 100;
  std::string line;
  for (const char c : text.substr(0, std::min(text.find_first_of("\r\n"), kMaxShown)))
    line += c >= ' ' && c <= '~' ? c : '?';
  return line;
}

/// Returns whether the server has closed a kept connection before it answered: the request may be sent again.
bool was_closed(const error_code& error) {
  return error == http::error::end_of_stream || error == asio::error::eof || error == asio::error::connection_reset ||
         error == asio::error::broken_pipe || error == asio::ssl::error::stream_truncated;
}

}  // namespace

Result<std::shared_ptr<asio::ssl::context>> make_tls_context(const std::string& ca_file) {
  using asio::ssl::context;
  auto made = std::make_shared<context>(context::tls_client);
  made->set_options(context::default_workarounds | context::no_sslv2 | context::no_sslv3 | context::no_tlsv1 |
                    context::no_tlsv1_1);
  made->set_verify_mode(asio::ssl::verify_peer);
  error_code failure;
  if (ca_file.empty()) {
    made->set_default_verify_paths(failure);
  } else {
    made->load_verify_file(ca_file, failure);
  }
  if (failure)
    return make_error(ErrorCode::kInvalidArgument, "the certificates of authorities in {}: {}",
                      ca_file.empty() ? "this system" : ca_file, failure.message());
  return made;
}

std::string_view HttpHead::field(std::string_view name) const {
  const auto found = fields.find(beast::string_view(name.data(), name.size()));
  if (found == fields.end()) return {};
  return {found->value().data(), found->value().size()};
}

HttpConnection::HttpConnection(async::Runtime& runtime, asio::ssl::context& tls, const HubSettings& settings,
                               const Url& origin)
    : runtime_(runtime), tls_(tls), timeout_(settings.timeout), origin_(origin), proxy_(find_proxy(settings, origin)) {}

void HttpConnection::close() {
  parser_.reset();
  tls_stream_.reset();
  plain_stream_.reset();
  buffer_.clear();
}

void HttpConnection::fail(std::string_view what, const error_code& error) {
  close();
  const ErrorCode code = error == beast::error::timeout ? ErrorCode::kTimeout : ErrorCode::kUnavailable;
  const std::string why =
      error == beast::error::timeout ? fmt::format("no answer within {} ms", timeout_.count()) : error.message();
  throw_error(code, fmt::format("{}: {}: {}", origin_.origin(), what, why));
}

asio::awaitable<void> HttpConnection::connect() {
  close();
  asio::ip::tcp::resolver resolver(runtime_.executor());
  error_code error;
  const std::string host = proxy_ != nullptr ? proxy_->host : origin_.host;
  const std::string port = std::to_string(proxy_ != nullptr ? proxy_->port : origin_.port);
  const auto addresses = co_await resolver.async_resolve(host, port, redirect_error(use_awaitable, error));
  if (error) fail("looking up the address of " + host, error);
  auto stream = std::make_unique<PlainStream>(runtime_.executor());
  stream->expires_after(timeout_);
  co_await stream->async_connect(addresses, redirect_error(use_awaitable, error));
  if (error) fail(proxy_ != nullptr ? "connecting to the proxy " + proxy_->to_string() : "connecting", error);
  if (!origin_.is_tls) {
    plain_stream_ = std::move(stream);
    co_return;
  }
  if (proxy_ != nullptr) co_await open_tunnel(*stream);
  stream->expires_after(timeout_);
  tls_stream_ = std::make_unique<TlsStream>(std::move(*stream), tls_);
  co_await agree_on_tls();
}

asio::awaitable<void> HttpConnection::open_tunnel(PlainStream& stream) {
  constexpr std::string_view kEnd = "\r\n\r\n";
  constexpr unsigned kServerErrors = 500;
  const std::string what = "opening a tunnel through the proxy " + proxy_->to_string();
  const std::string request = tunnel_request(*proxy_, origin_);
  error_code error;
  stream.expires_after(timeout_);
  co_await asio::async_write(stream, asio::buffer(request), redirect_error(use_awaitable, error));
  std::string head;
  std::array<char, 1024> piece{};
  // The origin is silent until TLS begins, so nothing of it is read here.
  while (!error && head.find(kEnd) == std::string::npos && head.size() < kMaxHeaderBytes) {
    const size_t count = co_await stream.async_read_some(asio::buffer(piece), redirect_error(use_awaitable, error));
    head.append(piece.data(), count);
  }
  if (error) fail(what, error);
  if (head.find(kEnd) == std::string::npos)
    throw_error(ErrorCode::kUnavailable, fmt::format("{}: {}: its answer '{}' has no end within {} bytes",
                                                     origin_.origin(), what, first_line(head), kMaxHeaderBytes));
  const unsigned status = status_of(head);
  if (status / 100 == 2) co_return;
  throw_error(status == 0 || status >= kServerErrors ? ErrorCode::kUnavailable : ErrorCode::kInvalidArgument,
              fmt::format("{}: {}: it answers '{}', wanted 200", origin_.origin(), what, first_line(head)));
}

asio::awaitable<void> HttpConnection::agree_on_tls() {
  SSL* const ssl = tls_stream_->native_handle();
  if (is_address(origin_.host)) {
    X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(ssl), origin_.host.c_str());
  } else {
    SSL_set1_host(ssl, origin_.host.c_str());
    SSL_set_tlsext_host_name(ssl, origin_.host.c_str());
  }
  error_code error;
  co_await tls_stream_->async_handshake(asio::ssl::stream_base::client, redirect_error(use_awaitable, error));
  if (!error) co_return;
  const long verdict = SSL_get_verify_result(ssl);
  if (error.category() != asio::error::get_ssl_category() || verdict == X509_V_OK) fail("agreeing on TLS", error);
  close();
  throw_error(ErrorCode::kInvalidArgument, fmt::format("{}: its certificate is not accepted: {}", origin_.origin(),
                                                       X509_verify_cert_error_string(verdict)));
}

std::string HttpConnection::request_text(const HttpRequest& request) const {
  http::request_header<> header;
  header.version(kHttp11);
  header.method(request.is_head ? http::verb::head : http::verb::get);
  header.target(is_read_by_proxy() ? request.url.to_string() : request.url.target);
  header.set(http::field::host, request.url.host_header());
  header.set(http::field::user_agent, "millrace/" MILLRACE_VERSION);
  if (is_read_by_proxy() && !proxy_->authorization.empty())
    header.set(http::field::proxy_authorization, proxy_->authorization);
  for (const auto& [name, value] : request.headers) header.set(name, value);
  const http::request_header<>::writer writer(header, header.version(), header.method());
  return beast::buffers_to_string(writer.get());
}

asio::awaitable<error_code> HttpConnection::exchange(const HttpRequest& request) {
  const std::string text = request_text(request);
  parser_.emplace();
  parser_->header_limit(kMaxHeaderBytes);
  parser_->body_limit(boost::none);
  parser_->skip(request.is_head);
  error_code error;
  socket().expires_after(timeout_);
  if (tls_stream_) {
    co_await asio::async_write(*tls_stream_, asio::buffer(text), redirect_error(use_awaitable, error));
  } else {
    co_await asio::async_write(*plain_stream_, asio::buffer(text), redirect_error(use_awaitable, error));
  }
  while (!error && !parser_->is_header_done()) error = co_await parse_some();
  co_return error;
}

asio::awaitable<error_code> HttpConnection::parse_some() {
  error_code error = http::error::need_more;
  if (buffer_.size() > 0) buffer_.consume(parser_->put(buffer_.data(), error = {}));
  while (error == http::error::need_more) {
    const auto space = buffer_.prepare(kReadBytes);
    size_t count = 0;
    if (tls_stream_) {
      count = co_await tls_stream_->async_read_some(space, redirect_error(use_awaitable, error));
    } else {
      count = co_await plain_stream_->async_read_some(space, redirect_error(use_awaitable, error));
    }
    buffer_.commit(count);
    if (error == asio::error::eof) {
      if (!parser_->got_some()) co_return http::error::end_of_stream;
      parser_->put_eof(error = {});
    } else if (!error) {
      buffer_.consume(parser_->put(buffer_.data(), error));
    }
  }
  co_return error;
}

asio::awaitable<HttpHead> HttpConnection::request(HttpRequest request) {
  const bool is_reused = is_open() && parser_ && parser_->is_done() && parser_->get().keep_alive();
  if (!is_reused) co_await connect();
  error_code error = co_await exchange(request);
  if (error && is_reused && was_closed(error)) {
    co_await connect();
    error = co_await exchange(request);
  }
  if (error) fail("waiting for an answer", error);
  HttpHead head;
  head.status = parser_->get().result_int();
  head.fields = parser_->get().base();
  constexpr unsigned kProxyAuthenticationRequired = 407;
  if (is_read_by_proxy() && head.status == kProxyAuthenticationRequired) {
    close();
    throw_error(ErrorCode::kInvalidArgument,
                fmt::format("{}: the proxy {} wants other credentials (407)", origin_.origin(), proxy_->to_string()));
  }
  if (const auto length = parser_->content_length()) head.content_length = *length;
  co_return head;
}

asio::awaitable<size_t> HttpConnection::read_some(std::span<std::byte> into) {
  if (parser_->is_done()) co_return 0;
  auto& body = parser_->get().body();
  body.data = into.data();
  body.size = into.size();
  socket().expires_after(timeout_);
  error_code error = co_await parse_some();
  if (error == http::error::need_buffer) error = {};
  if (error) fail("receiving", error);
  co_return into.size() - body.size;
}

asio::awaitable<std::string> HttpConnection::read_text(size_t limit) {
  constexpr size_t kPieceBytes = 16 * 1024;
  std::string text;
  while (!parser_->is_done()) {
    const size_t begin = text.size();
    text.resize(begin + kPieceBytes);
    const size_t count = co_await read_some(std::as_writable_bytes(std::span(text).subspan(begin)));
    text.resize(begin + count);
    if (text.size() > limit) {
      close();
      throw_error(ErrorCode::kData, fmt::format("{}: an answer of more than {} bytes", origin_.origin(), limit));
    }
  }
  co_return text;
}

}  // namespace millrace::hub
