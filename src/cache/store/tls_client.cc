#include "cache/store/tls_client.h"

#include <arpa/inet.h>
#include <fmt/core.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <poll.h>
#include <sys/socket.h>

#include <cerrno>
#include <climits>
#include <cstring>

namespace millrace::cache {
namespace {

template <auto release>
struct Releaser {
  template <class T>
  void operator()(T* object) const {
    release(object);
  }
};
using Context = std::unique_ptr<SSL_CTX, Releaser<SSL_CTX_free>>;
using Ssl = std::unique_ptr<SSL, Releaser<SSL_free>>;

/// What OpenSSL says of its last failure, and forgets.
std::string last_reason() {
  const unsigned long error = ERR_peek_last_error();
  const char* const reason = ERR_reason_error_string(error);
  std::string text = reason != nullptr ? reason : fmt::format("error {:x}", error);
  ERR_clear_error();
  return text;
}

/// A socket as OpenSSL sees it: its own would raise SIGPIPE.
int descriptor_of(BIO* bio) {
  return *static_cast<const int*>(BIO_get_data(bio));
}

bool should_retry() {
  return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR;
}

int send_some(BIO* bio, const char* data, int size) {
  BIO_clear_retry_flags(bio);
  const ssize_t count = send(descriptor_of(bio), data, static_cast<size_t>(size), MSG_NOSIGNAL);
  if (count < 0 && should_retry()) BIO_set_retry_write(bio);
  return static_cast<int>(count);
}

int receive_some(BIO* bio, char* data, int size) {
  BIO_clear_retry_flags(bio);
  const ssize_t count = recv(descriptor_of(bio), data, static_cast<size_t>(size), 0);
  if (count < 0 && should_retry()) BIO_set_retry_read(bio);
  return static_cast<int>(count);
}

long control(BIO*, int command, long, void*) {
  return command == BIO_CTRL_FLUSH ? 1 : 0;
}

BIO_METHOD* socket_method() {
  static const std::unique_ptr<BIO_METHOD, Releaser<BIO_meth_free>> method = [] {
    std::unique_ptr<BIO_METHOD, Releaser<BIO_meth_free>> made(
        BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "socket"));
    BIO_meth_set_write(made.get(), send_some);
    BIO_meth_set_read(made.get(), receive_some);
    BIO_meth_set_ctrl(made.get(), control);
    return made;
  }();
  return method.get();
}

Context make_context(const TlsOptions& options) {
  ERR_clear_error();
  Context context(SSL_CTX_new(TLS_client_method()));
  if (!context) throw_error(ErrorCode::kUnavailable, "TLS cannot be used: " + last_reason());
  SSL_CTX_set_min_proto_version(context.get(), TLS1_2_VERSION);
  SSL_CTX_set_verify(context.get(), options.verify ? SSL_VERIFY_PEER : SSL_VERIFY_NONE, nullptr);
  const auto check = [](bool ok, const char* what, const std::string& file) {
    if (!ok) throw_error(ErrorCode::kInvalidArgument, fmt::format("{} {}: {}", what, file, last_reason()));
  };
  if (options.ca_file.empty()) {
    check(SSL_CTX_set_default_verify_paths(context.get()) == 1, "the authorities of", "this system");
  } else {
    check(SSL_CTX_load_verify_locations(context.get(), options.ca_file.c_str(), nullptr) == 1, "the authorities in",
          options.ca_file);
  }
  if (options.certificate_file.empty()) return context;
  SSL_CTX_set_default_passwd_cb(context.get(), [](char*, int, int, void*) { return 0; });  // else it asks a terminal
  check(SSL_CTX_use_certificate_chain_file(context.get(), options.certificate_file.c_str()) == 1, "the certificate in",
        options.certificate_file);
  check(SSL_CTX_use_PrivateKey_file(context.get(), options.key_file.c_str(), SSL_FILETYPE_PEM) == 1, "the key in",
        options.key_file);
  return context;
}

bool is_address(const std::string& host) {
  in6_addr address{};
  return inet_pton(AF_INET, host.c_str(), &address) == 1 || inet_pton(AF_INET6, host.c_str(), &address) == 1;
}

}  // namespace

class TlsClient::Session {
 public:
  Session(int socket, const std::string& host, const TlsOptions& options, Wait wait)
      : socket_(socket), wait_(std::move(wait)), context_(make_context(options)), ssl_(SSL_new(context_.get())) {
    BIO* const bio = BIO_new(socket_method());
    if (!ssl_ || bio == nullptr) throw_error(ErrorCode::kUnavailable, "TLS cannot be used: " + last_reason());
    BIO_set_data(bio, &socket_);
    BIO_set_init(bio, 1);
    SSL_set_bio(ssl_.get(), bio, bio);  // owns it from here on
    if (is_address(host)) {
      X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(ssl_.get()), host.c_str());
    } else {
      SSL_set1_host(ssl_.get(), host.c_str());
      SSL_set_tlsext_host_name(ssl_.get(), host.c_str());
    }
    (void)repeat("agreeing on TLS", [this] { return SSL_connect(ssl_.get()); });
  }

  /// What `call` returns when it has succeeded; 0 when the server has closed the connection.
  template <class Call>
  int repeat(const char* what, Call call) {
    for (;;) {
      ERR_clear_error();
      errno = 0;
      const int result = call();
      if (result > 0) return result;
      const int error_number = errno;
      switch (SSL_get_error(ssl_.get(), result)) {
        case SSL_ERROR_WANT_READ: wait_(POLLIN, what); continue;
        case SSL_ERROR_WANT_WRITE: wait_(POLLOUT, what); continue;
        case SSL_ERROR_ZERO_RETURN: return 0;
        case SSL_ERROR_SSL: explain_failure(what);
        default: break;
      }
      if (error_number == 0) return 0;
      throw_error(ErrorCode::kUnavailable, fmt::format("{}: {}", what, std::strerror(error_number)));
    }
  }
  [[nodiscard]] SSL* ssl() { return ssl_.get(); }

 private:
  [[noreturn]] void explain_failure(const char* what) {
    const int reason = ERR_GET_REASON(ERR_peek_last_error());
    const long verdict = SSL_get_verify_result(ssl_.get());
    if (reason == SSL_R_CERTIFICATE_VERIFY_FAILED) {
      throw_error(ErrorCode::kInvalidArgument,
                  fmt::format("the server's certificate is not accepted: {}", X509_verify_cert_error_string(verdict)));
    }
    if (reason == SSL_R_WRONG_VERSION_NUMBER || reason == SSL_R_PACKET_LENGTH_TOO_LONG) {
      throw_error(ErrorCode::kData, fmt::format("{}: {}: the server does not speak TLS", what, last_reason()));
    }
    constexpr int kInternalError = SSL_AD_REASON_OFFSET + SSL_AD_INTERNAL_ERROR;
    if (reason >= SSL_AD_REASON_OFFSET && reason != kInternalError) {
      throw_error(ErrorCode::kInvalidArgument, fmt::format("the server refuses this client: {}", last_reason()));
    }
    throw_error(ErrorCode::kUnavailable, fmt::format("{}: {}", what, last_reason()));
  }

  int socket_;
  const Wait wait_;
  const Context context_;
  const Ssl ssl_;
};

TlsClient::TlsClient(int socket, const std::string& host, const TlsOptions& options, Wait wait)
    : session_(std::make_unique<Session>(socket, host, options, std::move(wait))) {}

TlsClient::~TlsClient() = default;

size_t TlsClient::read(std::span<std::byte> into) {
  const int most = static_cast<int>(std::min<size_t>(into.size(), INT_MAX));
  return static_cast<size_t>(session_->repeat(
      "waiting for an answer", [this, into, most] { return SSL_read(session_->ssl(), into.data(), most); }));
}

void TlsClient::write(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const int most = static_cast<int>(std::min<size_t>(bytes.size(), INT_MAX));
    const int count =
        session_->repeat("sending", [this, bytes, most] { return SSL_write(session_->ssl(), bytes.data(), most); });
    if (count == 0) throw_error(ErrorCode::kUnavailable, "the server closed the connection");
    bytes = bytes.subspan(static_cast<size_t>(count));
  }
}

}  // namespace millrace::cache
