#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <string>

namespace millrace::server {

/// Draws ids and seeds that no two requests share. Owned by Api. Thread-safe.
class RandomSource {
 public:
  /// Makes a source whose values follow from `seed`; without one they cannot be predicted.
  explicit RandomSource(std::optional<uint64_t> seed = {});
  [[nodiscard]] uint64_t next();
  /// Returns 32 hexadecimal digits.
  [[nodiscard]] std::string hex_id();

 private:
  uint64_t seed_;
  std::atomic<uint64_t> position_{0};
};

}  // namespace millrace::server
