#include "comm/tcp_handshake.h"

#include <boost/asio/read.hpp>
#include <boost/asio/use_awaitable.hpp>

namespace millrace::comm {

asio::awaitable<HandshakeFrame> read_handshake(tcp::socket& socket) {
  FrameHeaderBytes bytes;
  co_await asio::async_read(socket, asio::buffer(bytes), asio::use_awaitable);
  const auto header = decode_header(bytes, true);
  if (header.has_error()) throw ErrorException(header.error());
  if (header->payload_bytes > kMaxReasonBytes) {
    throw ErrorException(make_error(ErrorCode::kData, "{} frame of {} bytes, at most {} are allowed",
                                    to_string(header->kind), header->payload_bytes, kMaxReasonBytes));
  }
  HandshakeFrame frame{*header, std::vector<std::byte>(header->payload_bytes)};
  co_await asio::async_read(socket, asio::buffer(frame.payload), asio::use_awaitable);
  co_return frame;
}

std::vector<std::byte> encode_welcome() {
  const FrameHeaderBytes header = encode_header({kProtocolVersion, FrameKind::kWelcome, 0, RingEpoch(), 0, 0});
  return {header.begin(), header.end()};
}

std::vector<std::byte> encode_refusal(const HelloDifference& difference) {
  const std::string_view reason = std::string_view(difference.reason).substr(0, kMaxReasonBytes);
  const uint16_t flags = difference.try_again ? kFlagTryAgain : 0;
  const FrameHeaderBytes header =
      encode_header({kProtocolVersion, FrameKind::kRefusal, flags, RingEpoch(), 0, reason.size()});
  std::vector<std::byte> bytes(header.begin(), header.end());
  const auto* text = reinterpret_cast<const std::byte*>(reason.data());
  bytes.insert(bytes.end(), text, text + reason.size());
  return bytes;
}

}  // namespace millrace::comm
