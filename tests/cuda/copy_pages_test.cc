#include <catch2/catch.hpp>
#include <cstring>
#include <numeric>

#include "cuda/device_array.h"
#include "cuda/shared_memory_limits.h"

using namespace millrace;
using namespace millrace::test;

namespace {

std::vector<uint8_t> noise(Random& random, size_t count) {
  std::vector<uint8_t> bytes(count);
  for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(random.integer(0, 255));
  return bytes;
}

/// The pages of a cache and a host address for each, both in random order and filled with noise.
struct Tiers {
  Tiers(Random& random, cuda::DeviceKvCache shape, size_t page_count, int32_t copied)
      : cache(shape),
        page_bytes(cuda::kv_page_bytes(shape)),
        pages(noise(random, page_count * page_bytes)),
        places(noise(random, static_cast<size_t>(copied) * page_bytes)) {
    cache.data = pages.get();
    std::vector<uint32_t> order(page_count);
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), random.engine());
    for (int32_t i = 0; i < copied; ++i) {
      pairs.page[i] = order[static_cast<size_t>(i)];
      pairs.host[i] = places.get() + static_cast<size_t>(copied - 1 - i) * page_bytes;
    }
    pairs.count = copied;
  }
  cuda::DeviceKvCache cache;
  size_t page_bytes;
  DeviceArray<uint8_t> pages;
  DeviceArray<uint8_t> places;
  cuda::PageCopyList pairs;
};

}  // namespace

TEST_CASE("copy_pages moves the wanted layers of pages and nothing else") {
  INFO("seed " << test_seed());
  Random random(test_seed() + 104);
  struct Case {
    cuda::DeviceKvCache cache;
    int32_t copied;
  };
  const Case cases[] = {{{nullptr, 3, 1, 8, 1}, 1},
                        {{nullptr, 2, 2, 20, 5}, 7},
                        {{nullptr, 1, 1, 3, 1}, cuda::PageCopyList::kMaxPages},
                        {{nullptr, 2, 3, 64, 48}, 3}};
  for (const auto& [cache, copied] : cases) {
    for (const auto way : {cuda::PageCopyDirection::kToHost, cuda::PageCopyDirection::kToDevice}) {
      for (int32_t first = 0; first < cache.layer_count; ++first) {
        for (int32_t count = 0; first + count <= cache.layer_count; ++count) {
          CAPTURE(cache.head_dim, copied, first, count);
          const Tiers tiers(random, cache, static_cast<size_t>(copied) + 3, copied);
          std::vector<uint8_t> pages = tiers.pages.values();
          std::vector<uint8_t> places = tiers.places.values();
          const size_t offset = static_cast<size_t>(first) * cuda::kv_layer_bytes(cache);
          const size_t bytes = static_cast<size_t>(count) * cuda::kv_layer_bytes(cache);
          for (int32_t i = 0; i < copied; ++i) {
            uint8_t* page = pages.data() + tiers.pairs.page[i] * tiers.page_bytes + offset;
            uint8_t* place = places.data() + (static_cast<uint8_t*>(tiers.pairs.host[i]) - tiers.places.get()) + offset;
            if (way == cuda::PageCopyDirection::kToHost) std::memcpy(place, page, bytes);
            if (way == cuda::PageCopyDirection::kToDevice) std::memcpy(page, place, bytes);
          }
          cuda::copy_pages(nullptr, way, tiers.cache, first, count, tiers.pairs);
          REQUIRE(tiers.pages.values() == pages);
          REQUIRE(tiers.places.values() == places);
        }
      }
    }
  }
}

TEST_CASE("shared memory is opted into once per device and for more") {
  cuda::SharedMemoryLimits limits;
  int asked = 0;
  const auto want = [&](int device, size_t bytes) { limits.raise_to(device, bytes, [&] { ++asked; }); };
  for (int i = 0; i < 3; ++i) want(0, 60'000);
  REQUIRE(asked == 1);
  want(1, 60'000);
  REQUIRE(asked == 2);
  want(0, 50'000);
  REQUIRE(asked == 2);
  want(0, 70'000);
  want(0, 60'000);
  REQUIRE(asked == 3);
  REQUIRE_THROWS(limits.raise_to(2, 60'000, [] { throw std::runtime_error("refused"); }));
  want(2, 60'000);  // what was refused was not allowed
  REQUIRE(asked == 4);
  for (int i = 0; i < 2; ++i) want(cuda::SharedMemoryLimits::kMaxDevices, 60'000);
  REQUIRE(asked == 6);
}
