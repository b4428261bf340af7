#pragma once

#include "async/deadline.h"
#include "comm/tcp_end.h"

/// The handshake of two link ends. The connecting side presents a hello on each lane; the listening side answers each
/// with a welcome or a refusal.
namespace millrace::comm {

struct HandshakeFrame {
  FrameHeader header;
  std::vector<std::byte> payload;  // at most kMaxReasonBytes
};
/// Reads the next frame, of any protocol version, and nothing after it. Throws ErrorException (kData) for garbage.
[[nodiscard]] asio::awaitable<HandshakeFrame> read_handshake(tcp::socket& socket);

[[nodiscard]] std::vector<std::byte> encode_welcome();
[[nodiscard]] std::vector<std::byte> encode_refusal(const HelloDifference& difference);

}  // namespace millrace::comm
