#pragma once

#include <catch2/catch.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "async/run.h"
#include "comm/tcp_link.h"

namespace millrace::test {

/// Long enough for a machine that does much else; nothing that works waits for it.
inline constexpr auto kPatience = std::chrono::seconds(60);

/// Options with which a busy machine is not taken for a dead peer.
[[nodiscard]] inline comm::TcpLinkOptions patient_options(size_t window = 8) {
  comm::TcpLinkOptions options;
  options.window = window;
  options.silence = kPatience;
  options.linger = kPatience;
  return options;
}

/// The epoch of sample_hello().
inline constexpr RingEpoch kEpoch{3};

[[nodiscard]] inline comm::LinkHello sample_hello() {
  comm::LinkHello hello;
  hello.ring = 0x1234;
  hello.epoch = kEpoch;
  hello.from = StageId(0);
  hello.to = StageId(1);
  hello.fingerprint_high = 7;
  hello.fingerprint_low = 8;
  hello.page_size = 16;
  hello.layer_count = 24;
  hello.hidden_row_bytes = 4096;
  return hello;
}

[[nodiscard]] std::vector<std::byte> bytes_of(std::string_view text);
/// Words that differ from place to place and from seed to seed.
[[nodiscard]] std::vector<std::byte> numbered_bytes(size_t size, uint64_t seed);
/// For big tensors: a comparison of vectors within REQUIRE would be written out.
[[nodiscard]] bool same_bytes(std::span<const std::byte> a, std::span<const std::byte> b);
[[nodiscard]] std::string text_of(const comm::Message& message);
/// The reason with which `receive` throws; empty when it does not.
[[nodiscard]] asio::awaitable<std::string> failure_of(comm::LinkReceiver& receiver, comm::MessageKind kind);

/// Commits the send and then sets the flag.
[[nodiscard]] asio::awaitable<void> commit_into(comm::Work& work, bool& committed);

/// Posts memory for the activations of `plan`, which are the next, and waits for them to lie there.
[[nodiscard]] asio::awaitable<std::vector<std::byte>> receive_activations(comm::LinkReceiver& receiver, PlanId plan,
                                                                          size_t size);

/// A thread's worth of links on loopback: a listener and a group on the Runtime of one io_context.
struct TcpWorld {
  explicit TcpWorld(comm::TcpListenerOptions options = {})
      : listener(comm::TcpListener::open(runtime, {"127.0.0.1", 0}, options).value()) {}

  /// Runs `script` and shuts everything down; rethrows what it throws.
  void run(asio::awaitable<void> script);
  [[nodiscard]] async::TimePoint soon() { return runtime.now() + kPatience; }
  /// Both ends of a link over loopback.
  [[nodiscard]] asio::awaitable<comm::Link> make_link(comm::TcpLinkOptions options,
                                                      comm::LinkHello hello = sample_hello());

  asio::io_context context{1};
  async::RealRuntime runtime{context};
  comm::TcpLinkGroup group{runtime};
  std::unique_ptr<comm::TcpListener> listener;
};

}  // namespace millrace::test
