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

/// Returns the indices of the `count` largest values, by descending value; of equal ones the lower comes first.
std::vector<size_t> largest_of(const std::vector<float>& values, int32_t count) {
  std::vector<size_t> order(values.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::sort(order, [&](size_t left, size_t right) {
    return values[left] > values[right] || (values[left] == values[right] && left < right);
  });
  order.resize(static_cast<size_t>(count));
  return order;
}

/// Replaces the choice values of experts outside the best groups by minus infinity.
void exclude_groups(const DeviceRouting& routing, std::vector<float>& values) {
  const auto size = static_cast<std::ptrdiff_t>(values.size()) / routing.group_count;
  std::vector<float> scores;
  for (int32_t group = 0; group < routing.group_count; ++group) {
    std::vector<float> own(values.begin() + group * size, values.begin() + (group + 1) * size);
    std::ranges::sort(own, std::greater());
    const bool sums_two = routing.group_score == tensor::GroupScore::kSumOfTwo && size > 1;
    scores.push_back(sums_two ? own[0] + own[1] : own[0]);
  }
  const std::vector<size_t> kept = largest_of(scores, routing.groups_per_row);
  for (size_t expert = 0; expert < values.size(); ++expert) {
    if (std::ranges::find(kept, expert / static_cast<size_t>(size)) == kept.end())
      values[expert] = -std::numeric_limits<float>::infinity();
  }
}

/// Returns the first experts, with weights that are NaN.
std::vector<Choice> spoilt_choices(int32_t per_row) {
  std::vector<Choice> chosen;
  for (size_t i = 0; i < static_cast<size_t>(per_row); ++i)
    chosen.push_back({i, std::numeric_limits<float>::quiet_NaN()});
  return chosen;
}

/// Returns the choices in ascending order of experts.
std::vector<Choice> choices_of(const float* logits, const DeviceExperts& experts) {
  const DeviceRouting& routing = experts.routing;
  const std::vector<float> row(logits, logits + experts.count);
  const float largest = *std::ranges::max_element(row);
  const bool by_softmax = routing.score == tensor::RouterScore::kSoftmax;
  const bool has_nan = std::ranges::any_of(row, [](float logit) { return std::isnan(logit); });
  if (has_nan || (by_softmax && !std::isfinite(largest))) return spoilt_choices(experts.per_row);
  std::vector<float> scores;
  for (const float logit : row)
    scores.push_back(by_softmax ? std::exp(logit - largest) : 1.0f / (1.0f + std::exp(-logit)));
  const float all = by_softmax ? std::accumulate(scores.begin(), scores.end(), 0.0f) : 1.0f;
  std::vector<float> values = row;
  for (size_t i = 0; routing.chooses_by_score && i < values.size(); ++i)
    values[i] = scores[i] / all + (routing.choice_bias == nullptr ? 0.0f : routing.choice_bias[i]);
  if (routing.group_count > 1) exclude_groups(routing, values);
  const std::vector<size_t> order = largest_of(values, experts.per_row);
  float divisor = all;
  if (experts.renormalize) {
    float sum = 0.0f;
    for (const size_t expert : order) sum += scores[expert];
    divisor = std::max(sum + routing.sum_epsilon * all, routing.min_sum * all);
  }
  std::vector<Choice> chosen;
  for (const size_t expert : order) {
    const float own = routing.expert_scales == nullptr ? 1.0f : routing.expert_scales[expert];
    chosen.push_back({expert, scores[expert] / divisor * routing.scale * own});
  }
  std::ranges::sort(chosen, {}, &Choice::expert);
  return chosen;
}

/// Returns the value of a gated activation.
float activated_value(const tensor::GatedActivation& activation, float gate, float up) {
  const auto sigmoid = [](float x) { return 1.0f / (1.0f + std::exp(-x)); };
  switch (activation.function) {
    case tensor::GatedFunction::kSilu: break;
    case tensor::GatedFunction::kGeluTanh:
      return 0.5f * gate * (1.0f + std::tanh(0.7978845608028654f * (gate + 0.044715f * gate * gate * gate))) * up;
    case tensor::GatedFunction::kClampedSwiglu: {
      const float g = gate > activation.limit ? activation.limit : gate;
      const float u = std::isnan(up) ? up : std::clamp(up, -activation.limit, activation.limit);
      return (u + 1.0f) * g * sigmoid(activation.alpha * g);
    }
  }
  return gate / (1.0f + std::exp(-gate)) * up;  // the bits of matmul_silu_mul
}

/// Adds to sums [hidden] the weight · expert(x [hidden]).
void add_expert(const uint16_t* x, const DeviceExperts& experts, const Choice& choice, float* sums) {
  const auto width = static_cast<size_t>(experts.hidden);
  const auto intermediate = static_cast<size_t>(experts.intermediate);
  const size_t own = choice.expert - static_cast<size_t>(experts.first());
  DeviceWeight gate_up{.data = experts.gate_up,
                       .out_features = experts.intermediate,
                       .in_features = experts.hidden,
                       .gate_up = experts.gated,
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
  const float input_weight = experts.weighs_inputs ? choice.weight : 1.0f;
  const float output_weight = experts.weighs_inputs ? 1.0f : choice.weight;
  for (size_t i = 0; i < intermediate; ++i) {
    if (!experts.gated) {
      const float sum = input_weight * dot(x, pair.row(i), width);
      activated[i] = to_bf16(sum < 0.0f ? 0.0f : sum * sum);
      continue;
    }
    float gate = input_weight * dot(x, pair.row(2 * i), width);
    float up = input_weight * dot(x, pair.row(2 * i + 1), width);
    if (experts.gate_up_biases != nullptr) {
      gate += experts.gate_up_biases[2 * own * intermediate + i];
      up += experts.gate_up_biases[(2 * own + 1) * intermediate + i];
    }
    activated[i] = to_bf16(activated_value(experts.activation, gate, up));
  }
  for (size_t i = 0; i < width; ++i) {
    const float bias = experts.down_biases == nullptr ? 0.0f : experts.down_biases[own * width + i];
    sums[i] += output_weight * (dot(activated.data(), back.row(i), intermediate) + bias);
  }
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
