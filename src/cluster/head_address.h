#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <memory>
#include <stop_token>

#include "base/result.h"
#include "comm/tcp_link.h"

namespace millrace::cluster {

/// Listens at the head's own address (--dist-init-addr), which may be a name: where that means several addresses, at
/// the first that is this host's. A name that is not found, or means other hosts, is tried again for a minute, since
/// names that follow their hosts around may be late. Blocks meanwhile; within a second, then every few, the log says
/// what is missing. Errors name the flag; kAborted: `stop` was requested.
[[nodiscard]] Result<std::unique_ptr<asio::ip::tcp::acceptor>> listen_as_head(const asio::any_io_executor& executor,
                                                                              const comm::TcpEndpoint& address,
                                                                              const std::stop_token& stop);

}  // namespace millrace::cluster
