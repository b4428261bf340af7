#include "comm/tcp_link.h"

#include <boost/asio/dispatch.hpp>
#include <boost/asio/ip/address.hpp>

#include "comm/tcp_end.h"

namespace millrace::comm {

std::string TcpEndpoint::to_string() const {
  return host.find(':') == std::string::npos ? fmt::format("{}:{}", host, port) : fmt::format("[{}]:{}", host, port);
}

TcpEndpoint TcpEndpoint::for_others() const {
  boost::system::error_code no_address;
  const auto address = asio::ip::make_address(host, no_address);
  return {.host = !no_address && address.is_loopback() ? "" : host, .port = port};
}

asio::awaitable<void> TcpLinkGroup::shutdown() {
  std::vector<std::weak_ptr<TcpEnd>> ends;
  {
    const std::lock_guard lock(mutex_);
    closed_ = true;
    ends = ends_;
  }
  for (const auto& each : ends) {
    if (const auto end = each.lock()) end->close("the process is shutting down");
  }
  ends.clear();
  co_await tasks_.join();
}

std::vector<LinkStats> TcpLinkGroup::stats() const {
  std::vector<LinkStats> all;
  const std::lock_guard lock(mutex_);
  for (const auto& each : ends_) {
    const auto end = each.lock();
    if (!end) continue;
    LinkStats stats = end->stats();
    if (stats.open) all.push_back(std::move(stats));
  }
  return all;
}

}  // namespace millrace::comm
