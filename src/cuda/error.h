#pragma once

#include <cuda_runtime_api.h>

#include <functional>
#include <string>

namespace millrace::cuda {

/// Returns text such as "out of memory (cudaErrorMemoryAllocation)".
[[nodiscard]] std::string describe_error(cudaError_t error);

/// Throws std::runtime_error, "CUDA: WHAT: …", unless the call succeeded. It clears the error, which is thus reported
/// once, and fails as fail() does.
void check(cudaError_t outcome, const char* what);

/// Throws std::runtime_error(what) for a call that failed. It clears the error and tells all failure listeners.
[[noreturn]] void fail(const std::string& what);

/// Hears of each call of fail() in this process, on the thread that made it.
class FailureListener {
 public:
  /// `on_failure` must not make calls whose failure would call it again.
  explicit FailureListener(std::function<void()> on_failure);
  ~FailureListener();
  FailureListener(const FailureListener&) = delete;
  FailureListener& operator=(const FailureListener&) = delete;

 private:
  friend void fail(const std::string& what);
  std::function<void()> on_failure_;
};

}  // namespace millrace::cuda
