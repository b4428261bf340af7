#pragma once

#include <algorithm>

#include "async/runtime.h"

namespace millrace::comm {

/// Distinguishes a silent peer from an own thread that was held up. The owner wakes at next_check() or earlier, and
/// gives the peer up when has_expired() says so. The reader from the peer calls on_receive(). Owned by a connection, on
/// its executor.
class SilenceWatch {
 public:
  SilenceWatch(async::Runtime& runtime, async::Duration limit) : runtime_(runtime), limit_(limit) {}

  /// Notes that bytes have arrived, or that the watch begins.
  void on_receive() {
    last_receive_ = runtime_.now();
    own_delay_ = {};
  }
  /// Returns when the silence will have lasted too long, if nothing comes before.
  [[nodiscard]] async::TimePoint next_check() const { return last_receive_ + limit_ + own_delay_; }
  /// Returns whether the silence has lasted too long, for an owner that meant to wake at `planned`. A much later wake
  /// decides nothing: the executor has yet to read what came meanwhile, and its delay is not the peer's silence.
  [[nodiscard]] bool has_expired(async::TimePoint planned) {
    const async::TimePoint now = runtime_.now();
    const async::Duration delay = now - std::max(planned, last_receive_);
    if (delay <= kOrdinaryDelay) return now >= next_check();
    own_delay_ += delay;
    return false;
  }
  [[nodiscard]] async::Duration length() const { return runtime_.now() - last_receive_; }

 private:
  /// The delay of a wake that is normal on a busy machine; a fraction of every limit.
  static constexpr async::Duration kOrdinaryDelay = std::chrono::milliseconds(100);

  async::Runtime& runtime_;
  const async::Duration limit_;
  async::TimePoint last_receive_;
  async::Duration own_delay_{};  // since then
};

}  // namespace millrace::comm
