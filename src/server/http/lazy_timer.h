#pragma once

#include <functional>
#include <optional>

#include "async/runtime.h"

namespace millrace::server {

/// A deadline that is moved far more often than it expires. Moving it later costs one store: the runtime's timer stays
/// armed and looks again when it fires. Member of its user, on one executor.
class LazyTimer {
 public:
  LazyTimer(async::Runtime& runtime, std::function<void()> on_expiry)
      : runtime_(runtime), on_expiry_(std::move(on_expiry)) {}
  LazyTimer(const LazyTimer&) = delete;
  LazyTimer& operator=(const LazyTimer&) = delete;
  ~LazyTimer() {
    if (armed_) runtime_.disarm(*armed_);
  }

  void expire_after(async::Duration duration) {
    deadline_ = runtime_.now() + duration;
    if (armed_ && armed_at_ <= *deadline_) return;
    if (armed_) runtime_.disarm(*armed_);
    arm();
  }
  void expire_never() { deadline_.reset(); }

 private:
  void arm() {
    armed_at_ = *deadline_;
    armed_ = runtime_.arm(armed_at_, [this] { fire(); });
  }
  void fire() {
    armed_.reset();
    if (!deadline_) return;
    if (runtime_.now() < *deadline_) {
      arm();
      return;
    }
    deadline_.reset();
    on_expiry_();
  }

  async::Runtime& runtime_;
  std::function<void()> on_expiry_;
  std::optional<async::TimePoint> deadline_;
  std::optional<async::TimerId> armed_;
  async::TimePoint armed_at_;
};

}  // namespace millrace::server
