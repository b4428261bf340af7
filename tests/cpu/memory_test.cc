#include "cpu/memory.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstring>
#include <stdexcept>

using namespace millrace;

TEST_CASE("pages are zeroed and large blocks are huge page aligned") {
  for (const size_t bytes : {size_t{1}, size_t{4097}, size_t{2} << 20, (size_t{5} << 20) + 1}) {
    const tensor::Buffer buffer = cpu::allocate_pages(bytes);
    REQUIRE(buffer.bytes() == bytes);
    REQUIRE(reinterpret_cast<uintptr_t>(buffer.data()) % (bytes >= (size_t{2} << 20) ? size_t{2} << 20 : 4096) == 0);
    REQUIRE(std::all_of(buffer.data(), buffer.data() + bytes, [](std::byte byte) { return byte == std::byte{0}; }));
    std::memset(buffer.data(), 1, bytes);
  }
  REQUIRE(cpu::allocate_pages(0).data() == nullptr);
}

TEST_CASE("refused memory is reported with wanted and available sizes") {
  constexpr size_t kBeyondAnyProcess = size_t{1} << 50;
  REQUIRE_THROWS_AS(cpu::allocate_pages(kBeyondAnyProcess), std::runtime_error);
  REQUIRE_THROWS_WITH(cpu::allocate_pages(kBeyondAnyProcess),
                      Catch::StartsWith("mmap of 1125899906.8 MB, ") &&
                          Catch::EndsWith(" MB of memory are available: Cannot allocate memory"));
}

TEST_CASE("scratch grows ahead of demand and stays") {
  cpu::Scratch scratch;
  REQUIRE(scratch.bytes() == 0);
  std::byte* const first = scratch.reserve(1000);
  REQUIRE(scratch.bytes() >= 1000);
  REQUIRE(scratch.reserve(10) == first);
  REQUIRE(scratch.reserve(scratch.bytes()) == first);
  const size_t before = scratch.bytes();
  auto* const floats = scratch.reserve_as<float>(before);
  REQUIRE(reinterpret_cast<uintptr_t>(floats) % 64 == 0);
  REQUIRE(scratch.bytes() >= before * sizeof(float));
  floats[before - 1] = 1.0f;
  REQUIRE_THROWS_AS(scratch.reserve(size_t{1} << 50), std::runtime_error);
  std::memset(scratch.reserve(100), 1, 100);
}
