#pragma once

namespace millrace::sched {

/// The share of their remaining max_tokens that running requests are expected to generate. It falls with every plan, so
/// that admission grows bolder, and returns to its start when pages ran out. Plain data of AdmissionController.
class NewTokenRatio {
 public:
  explicit NewTokenRatio(double start) : start_(start), ratio_(start) {}
  [[nodiscard]] double value() const { return ratio_; }
  void after_plan();
  void after_retraction() { ratio_ = start_; }

 private:
  double start_;
  double ratio_;
};

}  // namespace millrace::sched
