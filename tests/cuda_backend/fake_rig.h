#pragma once

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cuda/cuda_backend.h"
#include "cuda/emulator/fake_runtime.h"
#include "cuda_backend/decode_rig.h"

/// Rigs over the fake runtime, and the comparison of their results.
namespace millrace::test {

/// Resets the fake runtime at the end of a test, even when it fails.
struct CleanRuntime {
  CleanRuntime() { emulator::reset(); }
  ~CleanRuntime() { emulator::reset(); }
  CleanRuntime(const CleanRuntime&) = delete;
  CleanRuntime& operator=(const CleanRuntime&) = delete;
};

inline DecodeRig make_rig(size_t stages, bool graphs, const DecodeRig::Options& options,
                          const std::function<void(const std::string&)>& warn = {}) {
  std::vector<std::unique_ptr<tensor::Backend>> backends;
  for (size_t s = 0; s < stages; ++s) {
    // Without trying out wgmma, whose calls would be failed one by one, too.
    backends.push_back(cuda::make_backend({.products = cuda::GemmChoice::kMma, .graphs = graphs, .warn = warn}));
  }
  return {std::move(backends), options};
}

inline DecodeRig::Drawn generate(DecodeRig& rig, size_t steps) {
  rig.prefill();
  for (size_t i = 0; i < steps; ++i) rig.decode();
  return rig.drawn();
}

inline bool same(const tensor::SampleResult& a, const tensor::SampleResult& b) {
  return a.fault == b.fault && a.token == b.token && a.logprobs.token == b.logprobs.token &&
         a.logprobs.logprob == b.logprobs.logprob && a.logprobs.rank == b.logprobs.rank &&
         a.logprobs.top == b.logprobs.top;
}

inline bool same(const DecodeRig::Drawn& a, const DecodeRig::Drawn& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const auto& x, const auto& y) {
    return std::equal(x.begin(), x.end(), y.begin(), y.end(),
                      [](const auto& left, const auto& right) { return same(left, right); });
  });
}

inline constexpr size_t kSteps = 12;

/// Returns the results that every other configuration must reproduce: one stage, each op launched by itself.
inline DecodeRig::Drawn wanted_draws() {
  DecodeRig rig = make_rig(1, false, {});
  return generate(rig, kSteps);
}

}  // namespace millrace::test
