#include "comm/collective/expert_transfers.h"

#include <poll.h>

#include <algorithm>

#include "base/check.h"
#include "comm/wire.h"

namespace millrace::comm {
namespace {

/// Looks at the sockets before the thread sleeps.
constexpr int kTransferSpins = 20;
/// The bytes of one call of the kernel, after which another peer has its turn.
constexpr size_t kTransferPieceBytes = size_t{256} << 10;

/// Returns the next piece of two parts that follow one another, from position `at` on.
template <class Byte>
std::span<Byte> piece_at(const std::array<std::span<Byte>, 2>& parts, size_t at) {
  const size_t first = parts[0].size();
  const std::span<Byte> rest = at < first ? parts[0].subspan(at) : parts[1].subspan(at - first);
  return rest.first(std::min(rest.size(), kTransferPieceBytes));
}

template <class Byte>
size_t total_bytes(const std::array<std::span<Byte>, 2>& parts) {
  return parts[0].size() + parts[1].size();
}

}  // namespace

ExpertTransfers::HeaderBytes ExpertTransfers::encode(const ExpertMessageHeader& header) {
  ByteWriter out;
  out.put(header.turn);
  out.put(header.step);
  out.put(header.kind);
  out.put(header.rows);
  out.put(header.row_bytes);
  const std::vector<std::byte> written = out.take();
  HeaderBytes bytes{};
  CHECK(written.size() == bytes.size());
  std::ranges::copy(written, bytes.begin());
  return bytes;
}

ExpertMessageHeader ExpertTransfers::decode(const HeaderBytes& bytes) {
  ByteReader in(bytes);
  ExpertMessageHeader header;
  header.turn = in.get<uint64_t>();
  header.step = in.get<uint64_t>();
  header.kind = in.get<ExpertMessageHeader::Kind>();
  header.rows = in.get<int64_t>();
  header.row_bytes = in.get<int64_t>();
  return header;
}

bool ExpertTransfers::run(std::span<ExpertTransfer> transfers, const std::function<void()>& on_headers) {
  CHECK(!transfers.empty() && transfers.size() <= kMaxPeers, "an exchange with {} peers", transfers.size());
  for (size_t i = 0; i < transfers.size(); ++i) progress_[i] = {.own = encode(transfers[i].own)};
  bool has_headers = false;
  for (int looks = 0;;) {
    if (ended_.load(std::memory_order_acquire)) return false;
    size_t moved = 0;
    size_t headers = 0;
    size_t complete = 0;
    for (size_t i = 0; i < transfers.size(); ++i) {
      ExpertTransfer& transfer = transfers[i];
      Progress& progress = progress_[i];
      current_ = transfer.peer;
      moved += send_some(transfer, progress);
      moved += receive_some(transfer, progress, has_headers);
      headers += progress.received >= kHeaderBytes ? 1 : 0;
      const bool is_sent = progress.sent == kHeaderBytes + total_bytes(transfer.out);
      complete += is_sent && progress.received == kHeaderBytes + total_bytes(transfer.in) ? 1 : 0;
    }
    if (!has_headers && headers == transfers.size()) {
      for (size_t i = 0; i < transfers.size(); ++i) transfers[i].theirs = decode(progress_[i].theirs);
      on_headers();
      has_headers = true;
    } else if (has_headers && complete == transfers.size()) {
      return true;
    } else if (moved > 0) {
      looks = 0;
    } else if (++looks > kTransferSpins && !wait(transfers, has_headers)) {
      return false;
    }
  }
}

size_t ExpertTransfers::send_some(const ExpertTransfer& transfer, Progress& progress) {
  if (progress.sent == kHeaderBytes + total_bytes(transfer.out)) return 0;
  const auto header = std::span<const std::byte>(progress.own).subspan(std::min(progress.sent, kHeaderBytes));
  const size_t rows_sent = progress.sent > kHeaderBytes ? progress.sent - kHeaderBytes : 0;
  const size_t sent = peers_[transfer.peer]->try_send(header, piece_at(transfer.out, rows_sent));
  progress.sent += sent;
  return sent;
}

size_t ExpertTransfers::receive_some(const ExpertTransfer& transfer, Progress& progress, bool has_headers) {
  std::span<std::byte> target;
  if (progress.received < kHeaderBytes) {
    target = std::span(progress.theirs).subspan(progress.received);
  } else if (has_headers && progress.received < kHeaderBytes + total_bytes(transfer.in)) {
    target = piece_at(transfer.in, progress.received - kHeaderBytes);
  }
  if (target.empty()) return 0;
  const size_t received = peers_[transfer.peer]->try_receive(target);
  progress.received += received;
  return received;
}

/// Waits until a lane is ready. Returns false once the exchange has ended.
bool ExpertTransfers::wait(std::span<const ExpertTransfer> transfers, bool has_headers) {
  std::array<pollfd, 2 * kMaxPeers> watched{};
  for (size_t i = 0; i < transfers.size(); ++i) {
    const Progress& progress = progress_[i];
    const bool sends = progress.sent < kHeaderBytes + total_bytes(transfers[i].out);
    const bool receives = progress.received < kHeaderBytes + (has_headers ? total_bytes(transfers[i].in) : 0);
    const int events = (sends ? POLLOUT : 0) | (receives ? POLLIN : 0);
    watched[i] = {.fd = peers_[transfers[i].peer]->data(), .events = static_cast<short>(events), .revents = 0};
  }
  for (size_t i = 0; i < peers_.size(); ++i) {
    watched[transfers.size() + i] = {.fd = peers_[i]->control(), .events = POLLIN, .revents = 0};
  }
  // The end of the lanes wakes it when the exchange ends.
  const int ready = ::poll(watched.data(), transfers.size() + peers_.size(), -1);
  if (ended_.load(std::memory_order_acquire)) return false;
  if (ready <= 0) return true;
  for (size_t i = 0; i < peers_.size(); ++i) {
    if (watched[transfers.size() + i].revents == 0) continue;
    current_ = i;
    peers_[i]->check_goodbye();
  }
  for (size_t i = 0; i < transfers.size(); ++i) {
    const bool is_read = (watched[i].events & (POLLIN | POLLOUT)) != 0;  // then its next call says what is wrong
    if (is_read || (watched[i].revents & (POLLERR | POLLHUP)) == 0) continue;
    current_ = transfers[i].peer;
    peers_[current_]->throw_lost("its connection has ended");
  }
  return true;
}

}  // namespace millrace::comm
