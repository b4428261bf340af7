#pragma once

#include <boost/asio/awaitable.hpp>
#include <cstdint>
#include <string>

#include "async/runtime.h"

namespace millrace::sched {

/// The coordinator as one participant sees it: within a process a shared word, between processes messages. Owned by
/// the participant and used on its thread.
class StepBoard {
 public:
  virtual ~StepBoard() = default;
  /// Returns the newest number of the coordinator that has arrived here.
  [[nodiscard]] virtual uint64_t target() const = 0;
  /// Lets the coordinator know that this participant is about to begin `step`, which is past target(). Never waits.
  virtual void start_step(uint64_t step) = 0;
  /// Waits until target() is above `seen`. Throws ErrorException (kUnavailable) once the coordinator or another
  /// participant has left, with its name and reason. One wait at a time.
  [[nodiscard]] virtual asio::awaitable<void> wait_beyond(uint64_t seen) = 0;
  /// Ends the epoch for all participants; the first reason counts.
  virtual void leave(const std::string& reason) = 0;
};

}  // namespace millrace::sched
