#pragma once

#include <chrono>
#include <thread>

namespace millrace::test {

/// Polls until `condition` holds, for longer than a busy machine needs; returns whether it does.
template <class Condition>
[[nodiscard]] bool eventually(const Condition& condition) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::minutes(1);
  while (!condition()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

}  // namespace millrace::test
