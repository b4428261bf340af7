#include "cache/redis_connection.h"

#include <fcntl.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <memory>
#include <optional>

namespace millrace::cache {
namespace {

constexpr size_t kBufferBytes = 64 * 1024;
constexpr size_t kMaxPieces = 1024;  // of one system call

[[noreturn]] void fail(ErrorCode code, std::string message) {
  throw ErrorException({code, std::move(message)});
}
[[noreturn]] void fail_with_errno(const char* step) {
  fail(ErrorCode::kUnavailable, fmt::format("{}: {}", step, std::strerror(errno)));
}

int64_t parse_integer(std::string_view text) {
  int64_t value = 0;
  const auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (failure != std::errc() || end != text.data() + text.size()) {
    fail(ErrorCode::kData, fmt::format("'{}' came where a number was wanted: not a Redis server", text.substr(0, 40)));
  }
  return value;
}

}  // namespace

std::string redis_name(const RedisStoreOptions& options) {
  if (options.host.starts_with('/')) return fmt::format("redis://{}/{}", options.host, options.db);
  return fmt::format("redis{}://{}:{}/{}", options.tls.enabled ? "s" : "", options.host, options.port, options.db);
}

RedisConnection::RedisConnection(const RedisStoreOptions& options)
    : timeout_ms_(options.timeout_ms), buffer_(kBufferBytes) {
  try {
    open_socket(options);
    if (options.tls.enabled) {
      tls_ = std::make_unique<TlsClient>(socket_, options.host, options.tls,
                                         [this](short events, const char* what) { wait_for(events, what); });
    }
    introduce(options);
  } catch (...) {
    if (socket_ >= 0) close(socket_);
    throw;
  }
}

RedisConnection::~RedisConnection() {
  tls_.reset();
  close(socket_);
}

void RedisConnection::connect_to(const sockaddr* address, unsigned length, int family) {
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

void RedisConnection::open_socket(const RedisStoreOptions& options) {
  if (options.host.starts_with('/')) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    options.host.copy(address.sun_path, sizeof address.sun_path - 1);
    connect_to(reinterpret_cast<const sockaddr*>(&address), sizeof address, AF_UNIX);
    return;
  }
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int failure = getaddrinfo(options.host.c_str(), std::to_string(options.port).c_str(), &hints, &found);
  if (failure != 0) fail(ErrorCode::kUnavailable, fmt::format("resolving: {}", gai_strerror(failure)));
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> addresses(found, freeaddrinfo);
  std::optional<ErrorException> last;
  for (const addrinfo* each = found; each != nullptr; each = each->ai_next) {
    try {
      connect_to(each->ai_addr, each->ai_addrlen, each->ai_family);
      const int on = 1;
      setsockopt(socket_, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
      return;
    } catch (const ErrorException& refused) {
      last = refused;
    }
  }
  throw *last;
}

void RedisConnection::introduce(const RedisStoreOptions& options) {
  struct Step {
    std::vector<std::string_view> words;
    std::string what;
  };
  const std::string db = std::to_string(options.db);
  std::vector<Step> steps;
  if (!options.password.empty() && options.user.empty()) steps.push_back({{"AUTH", options.password}, "the password"});
  if (!options.user.empty()) {
    steps.push_back({{"AUTH", options.user, options.password}, fmt::format("user '{}'", options.user)});
  }
  if (options.db != 0) steps.push_back({{"SELECT", db}, fmt::format("database {}", db)});
  steps.push_back({{"PING"}, "this client"});
  for (const Step& step : steps) {
    const auto& words = step.words;
    if (words.size() == 1) queue({words[0]});
    if (words.size() == 2) queue({words[0], words[1]});
    if (words.size() == 3) queue({words[0], words[1], words[2]});
    send();
    const RedisReply reply = receive();
    if (reply.kind == RedisReply::Kind::kStatus) continue;
    const bool busy =
        reply.text.starts_with("LOADING") || reply.text.starts_with("BUSY") || reply.text.starts_with("MASTERDOWN");
    fail(busy ? ErrorCode::kUnavailable : ErrorCode::kInvalidArgument,
         fmt::format("the server refuses {}: {}", step.what, reply.text));
  }
}

void RedisConnection::wait_for(short events, const char* what) const {
  pollfd waiting{socket_, events, 0};
  int ready = 0;
  do {
    ready = poll(&waiting, 1, timeout_ms_);
  } while (ready < 0 && errno == EINTR);
  if (ready < 0) fail_with_errno("poll");
  if (ready == 0) fail(ErrorCode::kTimeout, fmt::format("{}: no progress within {} ms", what, timeout_ms_));
}

void RedisConnection::queue(std::initializer_list<std::string_view> words) {
  std::string& text = texts_.emplace_back(fmt::format("*{}\r\n", words.size()));
  for (const std::string_view word : words) text += fmt::format("${}\r\n{}\r\n", word.size(), word);
  pieces_.push_back({text.data(), text.size()});
}

void RedisConnection::queue_value(std::initializer_list<std::string_view> words,
                                  std::array<std::span<const std::byte>, 2> value) {
  const size_t bytes = value[0].size() + value[1].size();
  std::string& before = texts_.emplace_back(fmt::format("*{}\r\n", words.size() + 1));
  std::string& after = texts_.emplace_back("\r\n");
  size_t index = 0;
  for (const std::string_view word : words) {
    (index++ < 2 ? before : after) += fmt::format("${}\r\n{}\r\n", word.size(), word);
  }
  before += fmt::format("${}\r\n", bytes);
  pieces_.push_back({before.data(), before.size()});
  for (const auto part : value) pieces_.push_back({const_cast<std::byte*>(part.data()), part.size()});
  pieces_.push_back({after.data(), after.size()});
}

void RedisConnection::send() {
  if (tls_) {
    send_encrypted();
  } else {
    send_plain();
  }
  pieces_.clear();
  texts_.clear();
}

void RedisConnection::send_encrypted() {
  std::vector<std::byte> record;
  record.reserve(TlsClient::kRecordBytes);
  for (const iovec& piece : pieces_) {
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

void RedisConnection::send_plain() {
  size_t first = 0;
  while (first < pieces_.size()) {
    msghdr message{};
    message.msg_iov = &pieces_[first];
    message.msg_iovlen = std::min(pieces_.size() - first, kMaxPieces);
    const ssize_t sent = sendmsg(socket_, &message, MSG_NOSIGNAL);
    if (sent < 0) {
      if (errno == EINTR) continue;
      if (errno != EAGAIN && errno != EWOULDBLOCK) fail_with_errno("sending");
      wait_for(POLLOUT, "sending");
      continue;
    }
    auto left = static_cast<size_t>(sent);
    while (first < pieces_.size() && left >= pieces_[first].iov_len) left -= pieces_[first++].iov_len;
    if (left == 0) continue;
    pieces_[first].iov_base = static_cast<std::byte*>(pieces_[first].iov_base) + left;
    pieces_[first].iov_len -= left;
  }
}

size_t RedisConnection::receive_some(std::span<std::byte> into) {
  for (;;) {
    const ssize_t count = tls_ ? static_cast<ssize_t>(tls_->read(into)) : recv(socket_, into.data(), into.size(), 0);
    if (count == 0) fail(ErrorCode::kUnavailable, "the server closed the connection");
    if (count > 0) return static_cast<size_t>(count);
    if (errno == EINTR) continue;
    if (errno != EAGAIN && errno != EWOULDBLOCK) fail_with_errno("receiving");
    wait_for(POLLIN, "waiting for an answer");
  }
}

void RedisConnection::take(std::span<std::byte> into) {
  const size_t here = std::min(into.size(), buffered());
  std::copy_n(buffer_.begin() + static_cast<std::ptrdiff_t>(begin_), here, into.begin());
  begin_ += here;
  into = into.subspan(here);
  while (!into.empty()) into = into.subspan(receive_some(into));
}

void RedisConnection::fill() {
  if (begin_ > 0) {
    std::copy(buffer_.begin() + static_cast<std::ptrdiff_t>(begin_),
              buffer_.begin() + static_cast<std::ptrdiff_t>(end_), buffer_.begin());
    end_ -= std::exchange(begin_, 0);
  }
  if (end_ == buffer_.size()) fail(ErrorCode::kData, "a line without end came: not a Redis server");
  end_ += receive_some(std::span(buffer_).subspan(end_));
}

std::string RedisConnection::read_line() {
  for (;;) {
    const std::string_view text(reinterpret_cast<const char*>(buffer_.data()) + begin_, buffered());
    if (const size_t end = text.find("\r\n"); end != std::string_view::npos) {
      std::string line(text.substr(0, end));
      begin_ += end + 2;
      return line;
    }
    fill();
  }
}

void RedisConnection::drop(uint64_t bytes) {
  while (bytes > 0) {
    if (buffered() == 0) fill();
    const size_t here = static_cast<size_t>(std::min<uint64_t>(bytes, buffered()));
    begin_ += here;
    bytes -= here;
  }
}

void RedisConnection::read_bulk(uint64_t bytes, std::array<std::span<std::byte>, 2> into) {
  for (const std::span<std::byte> part : into) {
    const auto here = static_cast<size_t>(std::min<uint64_t>(bytes, part.size()));
    take(part.first(here));
    bytes -= here;
  }
  drop(bytes);
  std::array<std::byte, 2> end{};
  take(end);
  if (end[0] != std::byte{'\r'} || end[1] != std::byte{'\n'}) {
    fail(ErrorCode::kData, "a string without its end came: not a Redis server");
  }
}

RedisReply RedisConnection::receive(std::array<std::span<std::byte>, 2> into) {
  const std::string line = read_line();
  const std::string_view rest = line.empty() ? std::string_view() : std::string_view(line).substr(1);
  RedisReply reply;
  switch (line.empty() ? '\0' : line[0]) {
    case '+': reply = {RedisReply::Kind::kStatus, std::string(rest)}; break;
    case '-': reply = {RedisReply::Kind::kError, std::string(rest)}; break;
    case ':': reply = {RedisReply::Kind::kInteger, {}, parse_integer(rest)}; break;
    case '$': {
      const int64_t bytes = parse_integer(rest);
      if (bytes < 0) break;
      reply = {RedisReply::Kind::kBulk, {}, 0, static_cast<uint64_t>(bytes)};
      read_bulk(reply.bulk_bytes, into);
      break;
    }
    default:
      fail(ErrorCode::kData,
           fmt::format("'{}' came where an answer was wanted: not a Redis server", line.substr(0, 40)));
  }
  return reply;
}

}  // namespace millrace::cache
