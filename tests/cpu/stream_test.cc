#include "cpu/stream.h"

#include <catch2/catch.hpp>
#include <chrono>
#include <ctime>
#include <future>
#include <stdexcept>
#include <vector>

#include "cpu/cpu_backend.h"

using namespace millrace;

TEST_CASE("work runs in order and the destructor awaits it") {
  std::vector<int> order;
  int done = 0;
  int failed = 0;
  {
    cpu::Stream stream("test");
    for (int i = 0; i < 500; ++i) {
      stream.submit([&order, i] { order.push_back(i); },
                    [&](std::exception_ptr failure) { ++(failure ? failed : done); });
    }
  }
  REQUIRE(done == 500);
  REQUIRE(failed == 0);
  REQUIRE(order.size() == 500);
  REQUIRE(std::is_sorted(order.begin(), order.end()));
}

TEST_CASE("an exception reaches only its own completion") {
  std::vector<std::string> messages;
  {
    cpu::Stream stream("test");
    const auto record = [&messages](std::exception_ptr failure) {
      try {
        if (failure) std::rethrow_exception(failure);
        messages.emplace_back("fine");
      } catch (const std::exception& error) {
        messages.emplace_back(error.what());
      }
    };
    stream.submit([] {}, record);
    stream.submit([] { throw std::runtime_error("broken"); }, record);
    stream.submit([] {}, record);
  }
  REQUIRE(messages == std::vector<std::string>{"fine", "broken", "fine"});
}

TEST_CASE("a completion may submit more work") {
  std::atomic<int> runs{0};
  {
    const auto backend = cpu::make_backend({.threads = 2});
    std::function<void(std::exception_ptr)> again = [&](std::exception_ptr) {
      if (runs < 50) backend->submit([&] { ++runs; }, again);
    };
    backend->submit([] {}, again);
    while (runs < 50) std::this_thread::yield();
  }
  REQUIRE(runs == 50);
}

TEST_CASE("a gate opens layer by layer and stays shut on failed copies") {
  const auto backend = cpu::make_backend({.threads = 1});
  const auto gate = backend->make_layer_gate();
  std::atomic<int> copied{0};
  std::vector<int> seen;
  std::promise<void> all_passed;
  std::promise<bool> failed;
  backend->submit(
      [&] {
        for (int layer = 0; layer < 100; ++layer) {
          gate->wait_for(layer);
          seen.push_back(copied);
        }
        all_passed.set_value();
        gate->wait_for(100);
      },
      [&](std::exception_ptr failure) { failed.set_value(failure != nullptr); });
  backend->submit_copy(
      tensor::CopyDirection::kToDevice,
      [&] {
        for (int layer = 0; layer < 100; ++layer) {
          ++copied;
          gate->open(layer);
        }
        all_passed.get_future().wait();
        gate->fail();
      },
      [](std::exception_ptr) {});
  REQUIRE(failed.get_future().get());
  REQUIRE(seen.size() == 100);
  for (size_t layer = 0; layer < seen.size(); ++layer) REQUIRE(seen[layer] > static_cast<int>(layer));
}

TEST_CASE("idle backends use no processor time") {
  const auto first = cpu::make_backend({.threads = 2});
  const auto second = cpu::make_backend({.threads = 2});
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  const std::clock_t before = std::clock();
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  REQUIRE(static_cast<double>(std::clock() - before) / CLOCKS_PER_SEC < 0.02);
}

TEST_CASE("a backend names its instruction set and threads") {
  const auto backend = cpu::make_backend({.threads = 3, .isa = cpu::Isa::kPortable});
  REQUIRE(backend->description() == "cpu portable, 3 threads");
  REQUIRE(cpu::parse_isa("avx512_bf16").value() == cpu::Isa::kAvx512Bf16);
  REQUIRE(cpu::parse_isa("mmx").has_error());
}
