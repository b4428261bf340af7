#pragma once

#include <algorithm>

#include "async/runtime.h"

namespace millrace::comm {

/// Tells a peer that has fallen silent from an own thread that was held up. The owner wakes at next_look() or earlier
/// and gives the peer up when has_lasted() says so; whoever reads from the peer calls hear(). On one executor.
class SilenceWatch {
 public:
  SilenceWatch(async::Runtime& runtime, async::Duration limit) : runtime_(runtime), limit_(limit) {}

  /// Something has come, or the watch begins.
  void hear() {
    heard_at_ = runtime_.now();
    held_up_ = {};
  }
  /// When the silence will have lasted too long, if nothing comes before.
  [[nodiscard]] async::TimePoint next_look() const { return heard_at_ + limit_ + held_up_; }
  /// The owner runs, and meant to at `planned`: whether the silence has lasted too long. A wake that comes much too
  /// late judges nothing, since the executor has yet to read what came meanwhile, and its delay is not the peer's
  /// silence.
  [[nodiscard]] bool has_lasted(async::TimePoint planned) {
    const async::TimePoint now = runtime_.now();
    const async::Duration delay = now - std::max(planned, heard_at_);
    if (delay <= kOrdinaryDelay) return now >= next_look();
    held_up_ += delay;
    return false;
  }
  [[nodiscard]] async::Duration length() const { return runtime_.now() - heard_at_; }

 private:
  /// Of a thread on a busy machine; a fraction of every limit.
  static constexpr async::Duration kOrdinaryDelay = std::chrono::milliseconds(100);

  async::Runtime& runtime_;
  const async::Duration limit_;
  async::TimePoint heard_at_;
  async::Duration held_up_{};  // since then
};

}  // namespace millrace::comm
