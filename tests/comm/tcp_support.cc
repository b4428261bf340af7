#include "comm/tcp_support.h"

#include <cstring>

namespace millrace::test {
namespace {

asio::awaitable<void> accept_into(TcpWorld& world, comm::TcpLinkOptions options, comm::LinkHello hello,
                                  std::unique_ptr<comm::LinkReceiver>& receiver) {
  auto accepted = co_await world.listener->accept_link(world.group, hello, options, world.soon());
  receiver = std::move(accepted.value());
}

asio::awaitable<void> play(TcpWorld& world, asio::awaitable<void> script) {
  std::exception_ptr failure;
  try {
    co_await std::move(script);
  } catch (...) {
    failure = std::current_exception();
  }
  co_await world.group.shutdown();
  co_await world.listener->shutdown();
  if (failure) std::rethrow_exception(failure);
}

}  // namespace

std::vector<std::byte> bytes_of(std::string_view text) {
  std::vector<std::byte> bytes(text.size());
  std::memcpy(bytes.data(), text.data(), text.size());
  return bytes;
}

std::vector<std::byte> numbered_bytes(size_t size, uint64_t seed) {
  std::vector<std::byte> bytes(size);
  std::vector<uint64_t> words(size / sizeof(uint64_t));
  for (size_t i = 0; i < words.size(); ++i) words[i] = (i + seed) * 0x9E3779B97F4A7C15ull;
  if (!words.empty()) std::memcpy(bytes.data(), words.data(), words.size() * sizeof(uint64_t));
  return bytes;
}

bool same_bytes(std::span<const std::byte> a, std::span<const std::byte> b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size()) == 0);
}

std::string text_of(const comm::Message& message) {
  const auto bytes = message.payload.bytes();
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

asio::awaitable<std::string> failure_of(comm::LinkReceiver& receiver, comm::MessageKind kind) {
  std::string reason;
  try {
    (void)co_await receiver.receive(kind);
  } catch (const ErrorException& failure) {
    reason = failure.error().message;
  }
  co_return reason;
}

asio::awaitable<std::vector<std::byte>> receive_activations(comm::LinkReceiver& receiver, PlanId plan, size_t size) {
  std::vector<std::byte> memory(size);
  receiver.post(plan, memory);
  const comm::Message message = co_await receiver.receive(comm::MessageKind::kActivations);
  REQUIRE(message.plan == plan);
  REQUIRE(message.payload.bytes().data() == memory.data());
  REQUIRE(message.payload.bytes().size() == size);
  co_return memory;
}

void TcpWorld::run(asio::awaitable<void> script) {
  run_to_end(context, play(*this, std::move(script)));
}

asio::awaitable<comm::Link> TcpWorld::make_link(comm::TcpLinkOptions options, comm::LinkHello hello) {
  comm::Link link;
  async::TaskGroup tasks(runtime);
  tasks.spawn("accept", accept_into(*this, options, hello, link.receiver));
  auto sender =
      co_await comm::connect_link(runtime, group, listener->endpoint(), hello, options, runtime.now() + kPatience);
  co_await tasks.join();
  link.sender = std::move(sender.value());
  co_return link;
}

asio::awaitable<void> commit_into(comm::Work& work, bool& committed) {
  co_await work.commit();
  committed = true;
}

}  // namespace millrace::test
