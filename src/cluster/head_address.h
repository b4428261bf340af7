#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <memory>
#include <stop_token>

#include "base/result.h"
#include "comm/tcp_link.h"

namespace millrace::cluster {

/// Listens at the head's own address (--dist-init-addr). A name with several addresses means the first that is this
/// host's. A name that is not found, or belongs to other hosts, is tried again for a minute, because records of moving
/// hosts may be late. Blocks meanwhile; the log says within a second, then every few seconds, what is missing. Errors
/// name the flag; kAborted means that `stop` was requested.
[[nodiscard]] Result<std::unique_ptr<asio::ip::tcp::acceptor>> listen_as_head(const asio::any_io_executor& executor,
                                                                              const comm::TcpEndpoint& address,
                                                                              const std::stop_token& stop);

}  // namespace millrace::cluster
