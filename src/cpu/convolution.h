#pragma once

#include <algorithm>
#include <array>
#include <cstring>

#include "cpu/ops.h"
#include "cpu/state_runs.h"

namespace millrace::cpu {

inline constexpr int64_t kConvBlock = 256;   ///< channels that a thread computes together
inline constexpr int32_t kMaxConvWidth = 8;  ///< tokens

/// A causal convolution with its state. Blocks of channels of a sequence are independent of each other.
struct Convolution {
  Device& device;
  const tensor::ConvShape& shape;
  const CpuVector& weight;  // [width, channels]
  const CpuVector* bias;    // [channels]; may be null
  bool silu;
  const tensor::BatchLayout& batch;
  const CpuKvCache& states;
  int32_t layer;

  void check() const {
    CHECK(shape.width >= 2 && shape.width <= kMaxConvWidth, "a convolution over {} tokens, wanted 2 to {}", shape.width,
          kMaxConvWidth);
    CHECK(weight.size() == shape.channels * shape.width && (bias == nullptr || bias->size() == shape.channels),
          "a convolution of {} channels over {} tokens with {} weights", shape.channels, shape.width, weight.size());
    check_states(states, layer, shape.state_values());
  }

  /// Calls use(row, first channel, results, channels) for all rows. input(row, first channel, channels, slot) returns
  /// the inputs of a row, which stay readable until `width` rows later.
  template <class Input, class Use>
  void run(const Input& input, const Use& use) const {
    const int64_t blocks = (shape.channels + kConvBlock - 1) / kConvBlock;
    device.pool.run_ranges(
        static_cast<int64_t>(batch.sequence_count()) * blocks, [&](int64_t begin, int64_t end, int slot) {
          for (int64_t item = begin; item < end; ++item)
            run_block(static_cast<size_t>(item / blocks), item % blocks * kConvBlock, slot, input, use);
        });
  }

 private:
  template <class Input, class Use>
  void run_block(size_t sequence, int64_t first, int slot, const Input& input, const Use& use) const {
    const int64_t count = std::min(kConvBlock, shape.channels - first);
    const auto bytes = static_cast<size_t>(count) * sizeof(float);
    std::array<std::array<float, kConvBlock>, kMaxConvWidth> history;
    std::array<float, kConvBlock> results;
    std::array<const float*, kMaxConvWidth> recent{};  // [width], oldest first
    const int32_t kept = shape.width - 1;
    for_state_runs(batch, sequence, states, layer, [&](const StateRun& run) {
      for (int32_t tap = 0; tap < kept && run.first == batch.row_begin[sequence]; ++tap) {
        float* const copy = history[static_cast<size_t>(tap)].data();
        if (run.from == nullptr) {
          std::memset(copy, 0, bytes);
        } else {
          std::memcpy(copy, run.from + tap * shape.channels + first, bytes);
        }
        recent[static_cast<size_t>(tap)] = copy;
      }
      for (int32_t row = run.first; row < run.end; ++row) {
        recent[static_cast<size_t>(kept)] = input(row, first, count, slot);
        device.kernels.convolve(recent.data(), weight.data() + first, shape.channels, shape.width,
                                bias == nullptr ? nullptr : bias->data() + first, silu, count, results.data());
        use(row, first, results.data(), count);
        std::shift_left(recent.begin(), recent.begin() + shape.width, 1);
      }
      for (int32_t tap = 0; tap < kept && run.to != nullptr; ++tap)
        std::memcpy(run.to + tap * shape.channels + first, recent[static_cast<size_t>(tap)], bytes);
    });
  }
};

}  // namespace millrace::cpu
