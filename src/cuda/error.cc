#include "cuda/error.h"

#include <algorithm>
#include <mutex>
#include <stdexcept>
#include <utility>
#include <vector>

namespace millrace::cuda {
namespace {

struct Listeners {
  std::mutex mutex;
  std::vector<FailureListener*> all;
};

Listeners& listeners() {
  static Listeners first;
  return first;
}

}  // namespace

std::string describe_error(cudaError_t error) {
  return std::string(cudaGetErrorString(error)) + " (" + cudaGetErrorName(error) + ")";
}

void fail(const std::string& what) {
  (void)cudaGetLastError();
  {
    const std::lock_guard lock(listeners().mutex);
    for (const FailureListener* listener : listeners().all) listener->on_failure_();
  }
  throw std::runtime_error(what);
}

void check(cudaError_t outcome, const char* what) {
  if (outcome != cudaSuccess) fail(std::string("CUDA: ") + what + ": " + describe_error(outcome));
}

FailureListener::FailureListener(std::function<void()> on_failure) : on_failure_(std::move(on_failure)) {
  const std::lock_guard lock(listeners().mutex);
  listeners().all.push_back(this);
}

FailureListener::~FailureListener() {
  const std::lock_guard lock(listeners().mutex);
  std::erase(listeners().all, this);
}

}  // namespace millrace::cuda
