#include "comm/collective/rank_exchange.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstring>

#include "comm/wire.h"

namespace millrace::comm {
namespace {

/// Looks at the socket before the thread sleeps: a peer of equal speed is at most some microseconds away.
constexpr int kExchangeSpins = 20;
/// The peers of a rank among eight: at the distances 1, 2 and 4.
constexpr size_t kMaxPeers = 3;
/// The bytes of one call of the kernel, after which the other direction has its turn.
constexpr size_t kPieceBytes = size_t{256} << 10;

std::span<const std::byte> rest_of(std::span<const std::byte> bytes, size_t done) {
  return bytes.subspan(std::min(done, bytes.size()));
}

}  // namespace

RankExchange::HeaderBytes RankExchange::encode(const RankMessageHeader& header) {
  HeaderBytes bytes{};
  std::byte* at = bytes.data();
  const auto put = [&at](const auto& value) {
    std::memcpy(at, &value, sizeof value);
    at += sizeof value;
  };
  put(header.turn);
  put(header.step);
  put(header.rank);
  put(header.call.kind);
  put(header.call.dtype);
  at += 6;  // zeros
  put(header.call.rows);
  put(header.call.cols);
  static_assert(kHeaderBytes == 8 + 4 + 4 + 2 + 6 + 8 + 8);
  return bytes;
}

void RankExchange::check_same(const RankMessageHeader& own, const HeaderBytes& bytes) {
  ByteReader reader(bytes);
  RankMessageHeader theirs;
  theirs.turn = reader.get<uint64_t>();
  theirs.step = reader.get<uint32_t>();
  theirs.rank = reader.get<uint32_t>();
  theirs.call.kind = reader.get<tensor::RankCall::Kind>();
  theirs.call.dtype = reader.get<tensor::DType>();
  for (int zero = 0; zero < 6; ++zero) (void)reader.get<uint8_t>();
  theirs.call.rows = reader.get<int64_t>();
  theirs.call.cols = reader.get<int64_t>();
  if (theirs.call.kind > tensor::RankCall::Kind::kAllGather || theirs.call.dtype > tensor::DType::kF16) {
    throw PeerLost(fmt::format("rank {} has received a malformed message from rank {}", own.rank, theirs.rank));
  }
  if (theirs.turn == own.turn && theirs.step == own.step && theirs.call == own.call) return;
  const auto rank = static_cast<int32_t>(own.rank);
  const auto other = static_cast<int32_t>(theirs.rank);
  const bool first = rank < other;
  throw PeerLost(fmt::format("{} (turn {} step {}, turn {} step {})",
                             describe_difference(first ? rank : other, first ? own.call : theirs.call,
                                                 first ? other : rank, first ? theirs.call : own.call),
                             first ? own.turn : theirs.turn, first ? own.step : theirs.step,
                             first ? theirs.turn : own.turn, first ? theirs.step : own.step));
}

void RankExchange::run(RankConnection& peer, const RankMessageHeader& header, std::span<const std::byte> from,
                       std::span<std::byte> into, const Progress& progress) {
  const HeaderBytes own = encode(header);
  HeaderBytes theirs{};
  size_t sent = 0;      // of header and payload
  size_t received = 0;  // of header and payload
  const size_t to_send = kHeaderBytes + from.size();
  const size_t to_receive = kHeaderBytes + into.size();
  for (int looks = 0; sent < to_send || received < to_receive;) {
    size_t moved = 0;
    if (sent < to_send) {
      const auto payload = from.subspan(sent > kHeaderBytes ? sent - kHeaderBytes : 0);
      moved += peer.try_send(rest_of(own, sent), payload.first(std::min(payload.size(), kPieceBytes)));
      sent += moved;
    }
    if (received < to_receive) {
      const std::span<std::byte> target =
          received < kHeaderBytes
              ? std::span<std::byte>(theirs).subspan(received)
              : into.subspan(received - kHeaderBytes).first(std::min(to_receive - received, kPieceBytes));
      const size_t count = peer.try_receive(target);
      const bool had_header = received >= kHeaderBytes;
      received += count;
      moved += count;
      if (!had_header && received >= kHeaderBytes) check_same(header, theirs);
    }
    if (moved > 0) {
      looks = 0;
      if (sent >= kHeaderBytes && received >= kHeaderBytes) progress(sent - kHeaderBytes, received - kHeaderBytes);
    } else if (++looks > kExchangeSpins) {
      wait(peer, sent < to_send, received < to_receive);
    }
  }
}

void RankExchange::check_goodbyes(std::span<const pollfd> watched) {
  for (size_t i = 0; i < watched.size(); ++i) {
    if (watched[i].revents != 0) peers_[i]->check_goodbye();
  }
}

void RankExchange::check_goodbyes() {
  std::array<pollfd, kMaxPeers> watched{};
  for (size_t i = 0; i < peers_.size(); ++i) watched[i] = {.fd = peers_[i]->control(), .events = POLLIN, .revents = 0};
  if (::poll(watched.data(), peers_.size(), 0) > 0) check_goodbyes(std::span(watched).first(peers_.size()));
}

/// Waits until the peer's data lane is ready. Throws PeerLost when any peer says goodbye, or this one is silent.
void RankExchange::wait(const RankConnection& peer, bool sending, bool receiving) {
  std::array<pollfd, kMaxPeers + 1> watched{};
  const int events = (sending ? POLLOUT : 0) | (receiving ? POLLIN : 0);
  watched[0] = {.fd = peer.data(), .events = static_cast<short>(events), .revents = 0};
  for (size_t i = 0; i < peers_.size(); ++i) {
    watched[i + 1] = {.fd = peers_[i]->control(), .events = POLLIN, .revents = 0};
  }
  const int ready = ::poll(watched.data(), peers_.size() + 1, static_cast<int>(silence_.count()));
  if (ready > 0) check_goodbyes(std::span(watched).subspan(1, peers_.size()));
  if (ready != 0) return;
  throw PeerLost(fmt::format("{} has sent and taken nothing for {} ms", peer.name(), silence_.count()));
}

}  // namespace millrace::comm
