#include "comm/collective/rank_connection.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <vector>

namespace millrace::comm {
namespace {

/// Time that a failed data lane waits for the goodbye on the control lane.
constexpr std::chrono::milliseconds kRankGoodbyeGrace{100};

bool is_temporary(int error) {
  return error == EAGAIN || error == EWOULDBLOCK || error == EINTR;
}

/// Makes calls return at once, and sends short messages without waiting for the acknowledgement of those before.
void prepare(int descriptor) {
  const int on = 1;
  (void)fcntl(descriptor, F_SETFL, fcntl(descriptor, F_GETFL) | O_NONBLOCK);
  (void)::setsockopt(descriptor, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

}  // namespace

RankConnection::RankConnection(LanePair lanes, const std::string& name, RingEpoch epoch)
    : name_(fmt::format("{} at {}", name, lanes.peer_address())),
      epoch_(epoch),
      control_(lanes.take(Lane::kControl)),
      data_(lanes.take(Lane::kData)) {
  prepare(control_);
  prepare(data_);
}

RankConnection::~RankConnection() {
  ::close(control_);
  ::close(data_);
}

size_t RankConnection::try_send(std::span<const std::byte> first, std::span<const std::byte> second) {
  std::array<iovec, 2> parts = {iovec{const_cast<std::byte*>(first.data()), first.size()},
                                iovec{const_cast<std::byte*>(second.data()), second.size()}};
  msghdr message{};
  message.msg_iov = parts.data();
  message.msg_iovlen = parts.size();
  const ssize_t sent = ::sendmsg(data_, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
  if (sent >= 0) return static_cast<size_t>(sent);
  if (!is_temporary(errno)) throw_lost(std::strerror(errno));
  return 0;
}

size_t RankConnection::try_receive(std::span<std::byte> into) {
  const ssize_t received = ::recv(data_, into.data(), into.size(), MSG_DONTWAIT);
  if (received > 0) return static_cast<size_t>(received);
  if (received == 0) throw_lost("it has closed the connection");
  if (!is_temporary(errno)) throw_lost(std::strerror(errno));
  return 0;
}

void RankConnection::throw_lost(const char* what) {
  const std::string fallback = fmt::format("{} is gone: {}", name_, what);
  check_goodbye(kRankGoodbyeGrace);
  throw PeerLost(fallback);
}

void RankConnection::check_goodbye(std::chrono::milliseconds patience) {
  pollfd readable{.fd = control_, .events = POLLIN, .revents = 0};
  if (::poll(&readable, 1, static_cast<int>(patience.count())) <= 0) return;
  // It is the only frame of the lane and was written at once.
  std::array<std::byte, kFrameHeaderBytes + kMaxReasonBytes> bytes;
  const ssize_t received = ::recv(control_, bytes.data(), bytes.size(), MSG_DONTWAIT);
  if (received < 0 && is_temporary(errno)) return;
  if (received < static_cast<ssize_t>(kFrameHeaderBytes)) throw PeerLost(name_ + " has closed the connection");
  const auto header = decode_header(std::span(bytes).first<kFrameHeaderBytes>());
  const auto text = std::span(bytes).first(static_cast<size_t>(received)).subspan(kFrameHeaderBytes);
  if (header.has_error() || header->kind != FrameKind::kGoodbye || header->payload_bytes != text.size()) {
    throw PeerLost(name_ + " has sent a malformed goodbye");
  }
  throw PeerGoodbye(sanitize_reason(text));
}

void RankConnection::end(const std::string& reason) {
  const std::string_view text = std::string_view(reason).substr(0, kMaxReasonBytes);
  const FrameHeaderBytes header =
      encode_header({.kind = FrameKind::kGoodbye, .epoch = epoch_, .payload_bytes = text.size()});
  std::vector<std::byte> bytes(header.begin(), header.end());
  const auto* begin = reinterpret_cast<const std::byte*>(text.data());
  bytes.insert(bytes.end(), begin, begin + text.size());
  (void)::send(control_, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  ::shutdown(control_, SHUT_WR);
  ::shutdown(data_, SHUT_RDWR);
}

}  // namespace millrace::comm
