#pragma once

#include <functional>

#include "comm/tcp_end.h"

/// How two ends find each other: the connecting side presents a hello on each lane, the listening side answers each
/// with a welcome or a refusal.
namespace millrace::comm {

struct HandshakeFrame {
  FrameHeader header;
  std::vector<std::byte> payload;  // at most kMaxReasonBytes
};
/// The next frame, of any protocol version, without reading past it. Throws ErrorException (kData) for garbage.
[[nodiscard]] asio::awaitable<HandshakeFrame> read_handshake(tcp::socket& socket);

[[nodiscard]] std::vector<std::byte> encode_welcome();
[[nodiscard]] std::vector<std::byte> encode_refusal(const HelloDifference& difference);

/// Calls `action` at `when` unless destroyed before: closes what a coroutine waits for.
class Deadline {
 public:
  Deadline(async::Runtime& runtime, async::TimePoint when, std::function<void()> action);
  Deadline(const Deadline&) = delete;
  Deadline& operator=(const Deadline&) = delete;
  ~Deadline() { runtime_.disarm(timer_); }
  [[nodiscard]] bool passed() const { return passed_; }

 private:
  async::Runtime& runtime_;
  bool passed_ = false;
  async::TimerId timer_;
};

}  // namespace millrace::comm
