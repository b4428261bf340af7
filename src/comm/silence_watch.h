#pragma once

#include <algorithm>

#include "async/runtime.h"

namespace millrace::comm {

/// Tells a peer that has fallen silent from an own thread that was held up. The owner wakes at next_check() or earlier
/// and gives the peer up when has_expired() says so; whoever reads from the peer calls on_receive(). On one executor.
class SilenceWatch {
 public:
  SilenceWatch(async::Runtime& runtime, async::Duration limit) : runtime_(runtime), limit_(limit) {}

  /// Something has come, or the watch begins.
  void on_receive() {
    last_receive_ = runtime_.now();
    own_delay_ = {};
  }
  /// When the silence will have lasted too long, if nothing comes before.
  [[nodiscard]] async::TimePoint next_check() const { return last_receive_ + limit_ + own_delay_; }
  /// The owner runs, and meant to at `planned`: whether the silence has lasted too long. A wake that comes much too
  /// late judges nothing, since the executor has yet to read what came meanwhile, and its delay is not the peer's
  /// silence.
  [[nodiscard]] bool has_expired(async::TimePoint planned) {
    const async::TimePoint now = runtime_.now();
    const async::Duration delay = now - std::max(planned, last_receive_);
    if (delay <= kOrdinaryDelay) return now >= next_check();
    own_delay_ += delay;
    return false;
  }
  [[nodiscard]] async::Duration length() const { return runtime_.now() - last_receive_; }

 private:
  /// Of a thread on a busy machine; a fraction of every limit.
  static constexpr async::Duration kOrdinaryDelay = std::chrono::milliseconds(100);

  async::Runtime& runtime_;
  const async::Duration limit_;
  async::TimePoint last_receive_;
  async::Duration own_delay_{};  // since then
};

}  // namespace millrace::comm
