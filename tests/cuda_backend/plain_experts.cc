// fused_moe of cuda/kernels.h as plain loops; see plain_kernels.cc, whose packed weights it reads.

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "cuda/emulator/emulator.h"
#include "cuda/kernels.h"
#include "cuda_backend/plain_numbers.h"
#include "cuda_backend/plain_weights.h"

namespace millrace::cuda {
namespace {

struct Choice {
  size_t expert = 0;
  float weight = 0.0f;
};

/// Returns the choices in ascending order of experts.
std::vector<Choice> choices_of(const float* logits, const DeviceExperts& experts) {
  const auto per_row = static_cast<size_t>(experts.per_row);
  std::vector<size_t> order(static_cast<size_t>(experts.count));
  std::iota(order.begin(), order.end(), size_t{0});
  const bool has_nan = std::any_of(logits, logits + experts.count, [](float logit) { return std::isnan(logit); });
  if (!has_nan) {
    std::ranges::sort(order, [&](size_t left, size_t right) {
      return logits[left] > logits[right] || (logits[left] == logits[right] && left < right);
    });
  }
  const float largest = logits[order.front()];
  const auto summed = experts.renormalize ? per_row : order.size();
  std::vector<Choice> chosen;
  float sum = 0.0f;
  for (size_t i = 0; i < summed; ++i) sum += std::exp(logits[order[i]] - largest);
  for (size_t i = 0; i < per_row; ++i) {
    const float weight = std::exp(logits[order[i]] - largest) / sum;
    chosen.push_back({order[i], has_nan ? std::numeric_limits<float>::quiet_NaN() : weight});
  }
  std::ranges::sort(chosen, {}, &Choice::expert);
  return chosen;
}

/// Adds to sums [hidden] the weight · expert(x [hidden]).
void add_expert(const uint16_t* x, const DeviceExperts& experts, const Choice& choice, float* sums) {
  const auto width = static_cast<size_t>(experts.hidden);
  const auto intermediate = static_cast<size_t>(experts.intermediate);
  const size_t own = choice.expert - static_cast<size_t>(experts.first());
  DeviceWeight gate_up{.data = experts.gate_up,
                       .out_features = experts.intermediate,
                       .in_features = experts.hidden,
                       .gate_up = true,
                       .format = experts.gate_up_format};
  DeviceWeight down{.data = experts.down,
                    .out_features = experts.hidden,
                    .in_features = experts.intermediate,
                    .format = experts.down_format};
  gate_up.data = static_cast<const std::byte*>(gate_up.data) + own * PlainWeight::bytes(gate_up);
  down.data = static_cast<const std::byte*>(down.data) + own * PlainWeight::bytes(down);
  const PlainWeight pair(gate_up);
  const PlainWeight back(down);
  std::vector<uint16_t> activated(intermediate);
  for (size_t i = 0; i < intermediate; ++i) {
    const float gate = dot(x, pair.row(2 * i), width);
    const float up = dot(x, pair.row(2 * i + 1), width);
    activated[i] = to_bf16(gate / (1.0f + std::exp(-gate)) * up);
  }
  for (size_t i = 0; i < width; ++i) sums[i] += choice.weight * dot(activated.data(), back.row(i), intermediate);
}

/// Returns whether shard `s` has an expert.
bool is_in_shard(const DeviceExperts& experts, size_t expert, int32_t s) {
  if (experts.shards.count == 0) return true;
  return static_cast<int32_t>(expert) >= experts.shards.border[s] &&
         static_cast<int32_t>(expert) < experts.shards.border[s + 1];
}

}  // namespace

size_t fused_moe_workspace_bytes(const DeviceExperts& experts, int32_t rows) {
  return static_cast<size_t>(rows) * static_cast<size_t>(experts.per_row);
}

void fused_moe(cudaStream_t stream, const void* x, const float* router_logits, const DeviceExperts& experts,
               const DeviceBatch& batch, int32_t, float* hidden, void*, size_t) {
  emulator::emulated_enqueue(stream, [=] {
    const auto width = static_cast<size_t>(experts.hidden);
    const auto count = static_cast<size_t>(experts.count);
    const auto rows = static_cast<size_t>(batch.row_begin[*batch.sequence_count]);
    for (size_t row = 0; row < rows; ++row) {
      const std::vector<Choice> chosen = choices_of(router_logits + row * count, experts);
      std::vector<std::vector<float>> shards;  // [shards][hidden]
      for (int32_t s = 0; s < std::max(experts.shards.count, 1); ++s) {
        std::vector<float>& sums = shards.emplace_back(width);
        for (const Choice& choice : chosen) {
          if (is_in_shard(experts, choice.expert, s)) add_expert(bf16(x) + row * width, experts, choice, sums.data());
        }
      }
      for (size_t i = 0; i < width; ++i) {
        std::vector<float> sums;
        for (const std::vector<float>& shard : shards) sums.push_back(shard[i]);
        hidden[row * width + i] += tree_sum(sums);
      }
    }
  });
}

}  // namespace millrace::cuda
