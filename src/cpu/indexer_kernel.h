#pragma once

// The sum over an indexer's heads. Included only by kernels.cc.

#include "cpu/kernels.h"
#include "cpu/simd.h"

namespace millrace::cpu {
namespace {

void weigh_scores(const float* scores, const float* weights, int heads, float* out) {
  constexpr int kVecs = kBlockKeys / kLanes;
  Vec sums[kVecs] = {};
  for (int head = 0; head < heads; ++head, scores += kBlockKeys) {
    const Vec weight = splat(weights[head]);
#pragma clang loop unroll(full)
    for (int v = 0; v < kVecs; ++v) {
      const Vec score = load(scores + v * kLanes);
      sums[v] = fma(weight, score < 0.0f ? Vec{} : score, sums[v]);
    }
  }
#pragma clang loop unroll(full)
  for (int v = 0; v < kVecs; ++v) store(out + v * kLanes, sums[v]);
}

}  // namespace
}  // namespace millrace::cpu
