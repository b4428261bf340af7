#include "comm/link.h"

#include <algorithm>

#include "base/result.h"

namespace millrace::comm {

std::string_view to_string(MessageKind kind) {
  switch (kind) {
    case MessageKind::kPlan: return "plan";
    case MessageKind::kActivations: return "activations";
    case MessageKind::kOutput: return "output";
    case MessageKind::kAcks: return "acks";
  }
  return "unknown";
}

size_t max_waiting(MessageKind kind, size_t window) {
  constexpr size_t kMaxAcks = 65536;
  return kind == MessageKind::kAcks ? std::max(kMaxAcks, window) : window;
}

Payload Payload::own(std::vector<std::byte> bytes) {
  auto owner = std::make_shared<const std::vector<std::byte>>(std::move(bytes));
  Payload payload;
  payload.bytes_ = *owner;
  payload.owner_ = std::move(owner);
  return payload;
}

Payload Payload::borrow(std::span<const std::byte> bytes, async::Event released) {
  Payload payload;
  payload.bytes_ = bytes;
  payload.owner_ = std::shared_ptr<const void>(bytes.data(), [released](const void*) { released.set(); });
  return payload;
}

Payload Payload::share(std::span<const std::byte> bytes, std::shared_ptr<const void> owner) {
  Payload payload;
  payload.bytes_ = bytes;
  payload.owner_ = std::move(owner);
  return payload;
}

asio::awaitable<void> Work::commit() {
  if (!released_) co_return;
  const async::Event released = *std::exchange(released_, std::nullopt);
  co_await released.wait();
}

asio::awaitable<std::optional<Message>> receive_until_closed(LinkReceiver& receiver, MessageKind kind) {
  try {
    co_return co_await receiver.receive(kind);
  } catch (const ErrorException&) {
    co_return std::nullopt;
  }
}

}  // namespace millrace::comm
