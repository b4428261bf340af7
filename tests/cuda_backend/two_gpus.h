#pragma once

#include <catch2/catch.hpp>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <vector>

#include "cuda/cuda_backend.h"
#include "cuda/emulator/fake_runtime.h"
#include "tensor/backend.h"

/// The shared parts of the channel tests: two GPUs of the fake runtime, and both ends of a channel between them.
namespace millrace::test {

/// Two GPUs, and the fake NCCL for the first load of the library.
struct TwoGpus {
  TwoGpus() {
    emulator::reset();
    emulator::set_device_count(2);
    REQUIRE(setenv("MILLRACE_NCCL_LIBRARY", MILLRACE_FAKE_NCCL, 1) == 0);
    for (const int device : {0, 1}) gpus.push_back(cuda::make_backend({.device = device}));
  }
  ~TwoGpus() {
    gpus.clear();
    emulator::reset();
    emulator::set_device_count(1);
  }
  TwoGpus(const TwoGpus&) = delete;
  TwoGpus& operator=(const TwoGpus&) = delete;

  std::vector<std::unique_ptr<tensor::Backend>> gpus;
};

/// An outcome that is set once.
class Completion {
 public:
  [[nodiscard]] std::function<void(std::exception_ptr)> handler() {
    return [promise = promise_](const std::exception_ptr& failure) {
      failure ? promise->set_exception(failure) : promise->set_value();
    };
  }
  void wait() { outcome_.get(); }

 private:
  std::shared_ptr<std::promise<void>> promise_ = std::make_shared<std::promise<void>>();
  std::future<void> outcome_ = promise_->get_future();
};

/// One end of a channel, with the calls of its handlers.
struct End {
  End(tensor::Backend& gpu, bool sending, std::vector<std::byte> id,
      std::chrono::milliseconds open_timeout = std::chrono::seconds(30),
      std::chrono::milliseconds transfer_timeout = std::chrono::seconds(60)) {
    tensor::ChannelOptions options;
    options.sending = sending;
    options.id = std::move(id);
    options.name = "stage 0 -> stage 1";
    options.peer = sending ? "stage 1" : "stage 0";
    options.open_timeout = open_timeout;
    options.transfer_timeout = transfer_timeout;
    options.opened = opened.handler();
    options.lost = lost.handler();
    channel = gpu.open_channel(std::move(options));
  }
  Completion opened;
  Completion lost;
  std::unique_ptr<tensor::DeviceChannel> channel;
};

struct Pair {
  Pair(const TwoGpus& both, std::vector<std::byte> id, std::chrono::milliseconds transfer_timeout)
      : sender(*both.gpus[0], true, id, std::chrono::seconds(30), transfer_timeout),
        receiver(*both.gpus[1], false, id, std::chrono::seconds(30), transfer_timeout) {
    sender.opened.wait();
    receiver.opened.wait();
  }
  explicit Pair(const TwoGpus& both, std::chrono::milliseconds transfer_timeout = std::chrono::seconds(60))
      : Pair(both, both.gpus[0]->make_channel_id(), transfer_timeout) {}
  End sender;
  End receiver;
};

inline std::vector<std::byte> bytes_of(size_t count, size_t seed) {
  std::vector<std::byte> bytes(count);
  for (size_t i = 0; i < count; ++i) bytes[i] = static_cast<std::byte>(i * 7 + seed * 31);
  return bytes;
}

inline std::span<std::byte> piece(const tensor::Buffer& buffer, size_t begin, size_t size) {
  return {buffer.data() + begin, size};
}

inline void put(tensor::Backend& gpu, const std::vector<std::byte>& bytes, std::byte* to) {
  gpu.run_and_wait([&] { gpu.copy_in(bytes, to); });
}

inline std::vector<std::byte> get(tensor::Backend& gpu, std::span<const std::byte> from) {
  std::vector<std::byte> found(from.size());
  gpu.run_and_wait([&] { gpu.copy_out(from.data(), found); });
  return found;
}

}  // namespace millrace::test
