#pragma once

#include <array>
#include <boost/asio/ip/tcp.hpp>
#include <cstdint>
#include <string>
#include <utility>

#include "async/runtime.h"

namespace millrace::comm {

/// The connections of a link: one for activations (data), one for everything else.
enum class Lane : uint8_t { kControl, kData };
inline constexpr size_t kLaneCount = 2;

/// Carries two connected sockets from the executor that made them to the one that uses them.
class LanePair {
 public:
  /// Takes the sockets off their executor.
  LanePair(asio::ip::tcp::socket control, asio::ip::tcp::socket data);
  LanePair(LanePair&& other) noexcept;
  LanePair& operator=(LanePair&& other) noexcept;
  ~LanePair();

  [[nodiscard]] asio::ip::tcp::socket take(Lane lane, const asio::any_io_executor& executor);
  /// Returns the descriptor of a lane, which the caller closes.
  [[nodiscard]] int take(Lane lane) { return std::exchange(descriptors_[static_cast<size_t>(lane)], -1); }
  [[nodiscard]] const std::string& peer_address() const { return peer_address_; }

 private:
  std::string peer_address_;
  asio::ip::tcp protocol_;
  std::array<int, kLaneCount> descriptors_;  // -1 where taken
};

}  // namespace millrace::comm
