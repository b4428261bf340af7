#include "server/random_source.h"

#include <fmt/format.h>

#include <random>

#include "base/random.h"

namespace millrace::server {

RandomSource::RandomSource(std::optional<uint64_t> seed) {
  if (seed) {
    seed_ = *seed;
    return;
  }
  std::random_device device;
  seed_ = (uint64_t{device()} << 32) | device();
}

uint64_t RandomSource::next() {
  const uint64_t position = position_++;
  const auto words = philox4x32({static_cast<uint32_t>(seed_), static_cast<uint32_t>(seed_ >> 32)},
                                {static_cast<uint32_t>(position), static_cast<uint32_t>(position >> 32), 1, 0});
  return (uint64_t{words[0]} << 32) | words[1];
}

std::string RandomSource::hex_id() {
  const uint64_t high = next();
  const uint64_t low = next();
  return fmt::format("{:016x}{:016x}", high, low);
}

}  // namespace millrace::server
