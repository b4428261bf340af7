#include "comm/tcp_link.h"

#include <unistd.h>

namespace millrace::comm {
namespace {

using tcp = asio::ip::tcp;

std::string address_of(const tcp::socket& socket) {
  boost::system::error_code failure;
  const auto endpoint = socket.remote_endpoint(failure);
  return failure ? "an unknown address" : TcpEndpoint{endpoint.address().to_string(), endpoint.port()}.to_string();
}

}  // namespace

LanePair::LanePair(tcp::socket control, tcp::socket data)
    : peer_address_(address_of(control)),
      protocol_(control.local_endpoint().protocol()),
      descriptors_{control.release(), data.release()} {}

LanePair::LanePair(LanePair&& other) noexcept
    : peer_address_(std::move(other.peer_address_)),
      protocol_(other.protocol_),
      descriptors_(std::exchange(other.descriptors_, {-1, -1})) {}

LanePair& LanePair::operator=(LanePair&& other) noexcept {
  std::swap(peer_address_, other.peer_address_);
  std::swap(protocol_, other.protocol_);
  std::swap(descriptors_, other.descriptors_);
  return *this;
}

LanePair::~LanePair() {
  for (const int descriptor : descriptors_) {
    if (descriptor >= 0) ::close(descriptor);
  }
}

tcp::socket LanePair::take(Lane lane, const asio::any_io_executor& executor) {
  return {executor, protocol_, std::exchange(descriptors_[static_cast<size_t>(lane)], -1)};
}

}  // namespace millrace::comm
