#include "cpu/stream.h"

#include <catch2/catch.hpp>
#include <chrono>
#include <ctime>
#include <stdexcept>
#include <vector>

#include "cpu/cpu_backend.h"

using namespace millrace;

TEST_CASE("work runs in order, and the destructor waits for it") {
  std::vector<int> order;
  int done = 0;
  int failed = 0;
  {
    cpu::Stream stream(-1);
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

TEST_CASE("an exception reaches its own completion and nobody else's") {
  std::vector<std::string> messages;
  {
    cpu::Stream stream(-1);
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
