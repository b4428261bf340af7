#include "comm/send_budget.h"

#include <linux/sockios.h>
#include <linux/tcp.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstdint>

namespace millrace::comm {
namespace {

constexpr uint64_t kMaxQueuedUs = 250'000;
/// Queueing delay below which a path counts as fast.
constexpr uint64_t kQuickUs = 20'000;
/// Bytes in flight that suffice to measure the next round trip.
constexpr uint64_t kMinBytes = uint64_t{32} << 10;
constexpr int kLevelTcp = 6;  // IPPROTO_TCP, whose header defines another tcp_info

}  // namespace

size_t send_budget(int socket) {
  tcp_info info{};
  socklen_t size = sizeof info;
  int bytes = 0;
  if (getsockopt(socket, kLevelTcp, TCP_INFO, &info, &size) != 0) return kUnboundedBudget;
  if (info.tcpi_rtt < info.tcpi_min_rtt + kQuickUs || ioctl(socket, SIOCOUTQ, &bytes) != 0) return kUnboundedBudget;
  const uint64_t queued_us = info.tcpi_rtt - info.tcpi_min_rtt;
  const auto under_way = static_cast<uint64_t>(bytes);
  const uint64_t allowed = std::max(under_way * kMaxQueuedUs / queued_us, kMinBytes);
  return under_way < allowed ? allowed - under_way : 0;
}

}  // namespace millrace::comm
