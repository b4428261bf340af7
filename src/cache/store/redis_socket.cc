#include "cache/store/redis_socket.h"

#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>
#include <string>
#include <vector>

namespace millrace::cache {
namespace {

constexpr size_t kMaxPieces = 1024;  // of one system call

[[noreturn]] void fail_with_errno(const char* step) {
  throw_error(ErrorCode::kUnavailable, fmt::format("{}: {}", step, std::strerror(errno)));
}

}  // namespace

RedisSocket::RedisSocket(const RedisStoreOptions& options, async::NameLookup& host) : timeout_ms_(options.timeout_ms) {
  try {
    open(options, host);
    if (options.tls.enabled) {
      tls_ = std::make_unique<TlsClient>(socket_, options.host, options.tls,
                                         [this](short events, const char* what) { wait_for(events, what); });
    }
  } catch (...) {
    if (socket_ >= 0) close(socket_);
    throw;
  }
}

RedisSocket::~RedisSocket() {
  tls_.reset();
  close(socket_);
}

void RedisSocket::connect_to(const sockaddr* address, unsigned length, int family) {
  if (socket_ >= 0) close(socket_);
  socket_ = socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (socket_ < 0) fail_with_errno("socket");
  if (connect(socket_, address, length) == 0) return;
  if (errno != EINPROGRESS) fail_with_errno("connecting");
  wait_for(POLLOUT, "connecting");
  int failure = 0;
  socklen_t size = sizeof failure;
  getsockopt(socket_, SOL_SOCKET, SO_ERROR, &failure, &size);
  errno = failure;
  if (failure != 0) fail_with_errno("connecting");
}

void RedisSocket::open(const RedisStoreOptions& options, async::NameLookup& host) {
  if (options.host.starts_with('/')) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    options.host.copy(address.sun_path, sizeof address.sun_path - 1);
    connect_to(reinterpret_cast<const sockaddr*>(&address), sizeof address, AF_UNIX);
    return;
  }
  const async::SocketAddresses found = host.wait_for(std::chrono::milliseconds(timeout_ms_)).value();
  std::optional<ErrorException> last;
  for (const async::SocketAddress& each : found) {
    try {
      connect_to(each.get(), each.size, each.get()->sa_family);
      const int on = 1;
      setsockopt(socket_, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
      return;
    } catch (const ErrorException& refused) {
      last = refused;
    }
  }
  throw *last;
}

void RedisSocket::wait_for(short events, const char* what) const {
  pollfd waiting{socket_, events, 0};
  int ready = 0;
  do {
    ready = poll(&waiting, 1, timeout_ms_);
  } while (ready < 0 && errno == EINTR);
  if (ready < 0) fail_with_errno("poll");
  if (ready == 0) throw_error(ErrorCode::kTimeout, fmt::format("{}: no progress within {} ms", what, timeout_ms_));
}

void RedisSocket::send(std::span<iovec> pieces) {
  if (tls_) {
    send_encrypted(pieces);
  } else {
    send_plain(pieces);
  }
}

void RedisSocket::send_encrypted(std::span<const iovec> pieces) {
  std::vector<std::byte> record;
  record.reserve(TlsClient::kRecordBytes);
  for (const iovec& piece : pieces) {
    std::span<const std::byte> left(static_cast<const std::byte*>(piece.iov_base), piece.iov_len);
    while (!left.empty()) {
      const size_t count = std::min(left.size(), TlsClient::kRecordBytes - record.size());
      record.insert(record.end(), left.begin(), left.begin() + static_cast<std::ptrdiff_t>(count));
      left = left.subspan(count);
      if (record.size() < TlsClient::kRecordBytes) continue;
      tls_->write(record);
      record.clear();
    }
  }
  tls_->write(record);
}

void RedisSocket::send_plain(std::span<iovec> pieces) {
  while (!pieces.empty()) {
    msghdr message{};
    message.msg_iov = pieces.data();
    message.msg_iovlen = std::min(pieces.size(), kMaxPieces);
    const ssize_t sent = sendmsg(socket_, &message, MSG_NOSIGNAL);
    if (sent < 0) {
      if (errno == EINTR) continue;
      if (errno != EAGAIN && errno != EWOULDBLOCK) fail_with_errno("sending");
      wait_for(POLLOUT, "sending");
      continue;
    }
    auto left = static_cast<size_t>(sent);
    while (!pieces.empty() && left >= pieces.front().iov_len) {
      left -= pieces.front().iov_len;
      pieces = pieces.subspan(1);
    }
    if (left == 0) continue;
    pieces.front().iov_base = static_cast<std::byte*>(pieces.front().iov_base) + left;
    pieces.front().iov_len -= left;
  }
}

size_t RedisSocket::receive_some(std::span<std::byte> into) {
  for (;;) {
    const ssize_t count = tls_ ? static_cast<ssize_t>(tls_->read(into)) : recv(socket_, into.data(), into.size(), 0);
    if (count == 0) throw_error(ErrorCode::kUnavailable, "the server closed the connection");
    if (count > 0) return static_cast<size_t>(count);
    if (errno == EINTR) continue;
    if (errno != EAGAIN && errno != EWOULDBLOCK) fail_with_errno("receiving");
    wait_for(POLLIN, "waiting for an answer");
  }
}

}  // namespace millrace::cache
