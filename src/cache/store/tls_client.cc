#include "cache/store/tls_client.h"

#include <arpa/inet.h>
#include <fmt/core.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <poll.h>
#include <sys/socket.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/ssl/context.hpp>
#include <boost/asio/ssl/error.hpp>
#include <boost/asio/ssl/stream.hpp>
#include <boost/asio/write.hpp>
#include <cerrno>

namespace millrace::cache {
namespace {

using boost::system::error_code;

/// A non-blocking socket as asio::ssl's next layer: a SyncReadStream and SyncWriteStream. Asio's own sockets have no
/// deadline for a blocking call.
class WaitingSocket {
 public:
  using executor_type = asio::io_context::executor_type;
  using lowest_layer_type = WaitingSocket;

  WaitingSocket(int socket, TlsClient::Wait wait) : socket_(socket), wait_(std::move(wait)) {}

  /// Names the step that the calls below are part of.
  void set_step(const char* step) { step_ = step; }
  [[nodiscard]] const char* step() const { return step_; }

  // asio::ssl makes two timers for asynchronous calls, which nobody starts: no thread runs their context.
  [[nodiscard]] executor_type get_executor() {
    static asio::io_context never_run;
    return never_run.get_executor();
  }
  [[nodiscard]] WaitingSocket& lowest_layer() { return *this; }

  [[nodiscard]] size_t read_some(const asio::mutable_buffer& into, error_code& failure) {
    return repeat(POLLIN, failure, [&] { return recv(socket_, into.data(), into.size(), 0); });
  }
  template <class Buffers>
  [[nodiscard]] size_t write_some(const Buffers& from, error_code& failure) {
    const asio::const_buffer first = *asio::buffer_sequence_begin(from);
    return repeat(POLLOUT, failure, [&] { return send(socket_, first.data(), first.size(), MSG_NOSIGNAL); });
  }

 private:
  template <class Call>
  size_t repeat(short events, error_code& failure, Call call) {
    failure = {};
    for (;;) {
      const ssize_t count = call();
      if (count > 0) return static_cast<size_t>(count);
      if (count == 0) {
        failure = asio::error::eof;
        return 0;
      }
      if (errno == EINTR) continue;
      if (errno != EAGAIN && errno != EWOULDBLOCK) {
        failure = error_code(errno, boost::system::system_category());
        return 0;
      }
      wait_(events, step_);
    }
  }

  const int socket_;
  const TlsClient::Wait wait_;
  const char* step_ = "agreeing on TLS";
};

void require_loaded(const error_code& failure, const char* what, const std::string& file) {
  if (failure) throw_error(ErrorCode::kInvalidArgument, fmt::format("{} {}: {}", what, file, failure.message()));
}

asio::ssl::context make_context(const TlsOptions& options) {
  using asio::ssl::context;
  context made(context::tls_client);
  made.set_options(context::default_workarounds | context::no_sslv2 | context::no_sslv3 | context::no_tlsv1 |
                   context::no_tlsv1_1);
  made.set_verify_mode(options.verify ? asio::ssl::verify_peer : asio::ssl::verify_none);
  error_code failure;
  if (options.ca_file.empty()) {
    made.set_default_verify_paths(failure);
    require_loaded(failure, "the authorities of", "this system");
  } else {
    made.load_verify_file(options.ca_file, failure);
    require_loaded(failure, "the authorities in", options.ca_file);
  }
  if (options.certificate_file.empty()) return made;
  made.set_password_callback([](size_t, context::password_purpose) { return std::string(); });  // else a terminal's
  made.use_certificate_chain_file(options.certificate_file, failure);
  require_loaded(failure, "the certificate in", options.certificate_file);
  made.use_private_key_file(options.key_file, context::pem, failure);
  require_loaded(failure, "the key in", options.key_file);
  return made;
}

bool is_address(const std::string& host) {
  in6_addr address{};
  return inet_pton(AF_INET, host.c_str(), &address) == 1 || inet_pton(AF_INET6, host.c_str(), &address) == 1;
}

bool is_closed(const error_code& failure) {
  return failure == asio::error::eof || failure == asio::ssl::error::stream_truncated;
}

}  // namespace

class TlsClient::Session {
 public:
  Session(int socket, const std::string& host, const TlsOptions& options, Wait wait)
      : context_(make_context(options)), socket_(socket, std::move(wait)), stream_(socket_, context_) {
    // Asio has no call for SNI. Its check of the name is a callback that loses OpenSSL's reason for a refusal.
    SSL* const ssl = stream_.native_handle();
    if (is_address(host)) {
      X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(ssl), host.c_str());
    } else {
      SSL_set1_host(ssl, host.c_str());
      SSL_set_tlsext_host_name(ssl, host.c_str());
    }
    error_code failure;
    stream_.handshake(asio::ssl::stream_base::client, failure);
    if (failure) explain(failure);
  }

  size_t read(std::span<std::byte> into) {
    socket_.set_step("waiting for an answer");
    error_code failure;
    const size_t count = stream_.read_some(asio::buffer(into.data(), into.size()), failure);
    if (failure && !is_closed(failure)) explain(failure);
    return count;
  }

  void write(std::span<const std::byte> bytes) {
    socket_.set_step("sending");
    error_code failure;
    asio::write(stream_, asio::buffer(bytes.data(), bytes.size()), failure);
    if (failure) explain(failure);
  }

 private:
  [[noreturn]] void explain(const error_code& failure) {
    if (is_closed(failure)) throw_error(ErrorCode::kUnavailable, "the server closed the connection");
    const std::string message = fmt::format("{}: {}", socket_.step(), failure.message());
    if (failure.category() != asio::error::get_ssl_category()) throw_error(ErrorCode::kUnavailable, message);
    const int reason = ERR_GET_REASON(static_cast<unsigned long>(failure.value()));
    if (reason == SSL_R_CERTIFICATE_VERIFY_FAILED) {
      const long verdict = SSL_get_verify_result(stream_.native_handle());
      throw_error(ErrorCode::kInvalidArgument,
                  fmt::format("the server's certificate is not accepted: {}", X509_verify_cert_error_string(verdict)));
    }
    if (reason == SSL_R_WRONG_VERSION_NUMBER || reason == SSL_R_PACKET_LENGTH_TOO_LONG) {
      throw_error(ErrorCode::kData, message + ": the server does not speak TLS");
    }
    constexpr int kInternalError = SSL_AD_REASON_OFFSET + SSL_AD_INTERNAL_ERROR;
    if (reason >= SSL_AD_REASON_OFFSET && reason != kInternalError) {
      throw_error(ErrorCode::kInvalidArgument, fmt::format("the server refuses this client: {}", failure.message()));
    }
    throw_error(ErrorCode::kUnavailable, message);
  }

  asio::ssl::context context_;
  WaitingSocket socket_;
  asio::ssl::stream<WaitingSocket&> stream_;
};

TlsClient::TlsClient(int socket, const std::string& host, const TlsOptions& options, Wait wait)
    : session_(std::make_unique<Session>(socket, host, options, std::move(wait))) {}

TlsClient::~TlsClient() = default;

size_t TlsClient::read(std::span<std::byte> into) {
  return session_->read(into);
}

void TlsClient::write(std::span<const std::byte> bytes) {
  if (!bytes.empty()) session_->write(bytes);
}

}  // namespace millrace::cache
