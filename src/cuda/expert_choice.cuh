#pragma once

// Routing by more than a softmax: sigmoid scores, a correction bias, groups, and further numbers of the weights.

#include "cuda/routing.cuh"

namespace millrace::cuda {

/// Removes the keys of experts outside the row's best groups. Keys order like choice values.
template <int kPerLane>
__device__ void keep_best_groups(const DeviceExperts& experts, uint32_t (&keys)[kPerLane]) {
  const auto lane = static_cast<int32_t>(threadIdx.x % kLanes);
  const DeviceRouting& routing = experts.routing;
  const int32_t size = experts.count / routing.group_count;
  const bool sums_two = routing.group_score == tensor::GroupScore::kSumOfTwo && size > 1;
  uint32_t group_keys[kPerLane] = {};
  for (int32_t group = 0; group < routing.group_count; ++group) {
    const auto is_member = [&](int i) {
      return static_cast<uint32_t>(i * kLanes + lane - group * size) < static_cast<uint32_t>(size);
    };
    uint32_t best = 0;
    uint32_t at = kMaxExperts;
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      if (!is_member(i) || keys[i] <= best) continue;
      best = keys[i];
      at = static_cast<uint32_t>(i * kLanes + lane);
    }
    const uint32_t first = __reduce_max_sync(kAllLanes, best);
    float score = value_of_key(first);
    if (sums_two) {
      const uint32_t winner = __reduce_min_sync(kAllLanes, best == first ? at : kMaxExperts);
      uint32_t next = 0;
#pragma unroll
      for (int i = 0; i < kPerLane; ++i) {
        const bool counts = is_member(i) && static_cast<uint32_t>(i * kLanes + lane) != winner;
        next = max(next, counts ? keys[i] : 0u);
      }
      score += value_of_key(__reduce_max_sync(kAllLanes, next));
    }
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      if (i * kLanes + lane == group) group_keys[i] = order_key(score);
    }
  }
  const uint32_t kept = select_topk_experts(group_keys, routing.groups_per_row);
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    const int32_t group = min((i * kLanes + lane) / size, routing.group_count - 1);
    const uint32_t of_owner = __shfl_sync(kAllLanes, kept, group % kLanes);
    if ((of_owner >> (group / kLanes) & 1u) == 0) keys[i] = 0;
  }
}

/// Finds one row's experts and their weights with one warp, as tensor::Routing says. A row with a NaN, or a softmax
/// over infinities, goes to the first experts with NaN weights.
template <int kPerLane>
__device__ void route_row_by_options(const RouteParams& route, int32_t row) {
  const auto lane = static_cast<int32_t>(threadIdx.x % kLanes);
  const DeviceExperts& experts = route.experts;
  const DeviceRouting& routing = experts.routing;
  const bool by_softmax = routing.score == tensor::RouterScore::kSoftmax;
  RowLogits<kPerLane> logits = read_logits<kPerLane>(route, row);
  uint32_t(&keys)[kPerLane] = logits.keys;
  const float top = logits.top;
  const bool is_nan = logits.has_nan || (by_softmax && top - top != 0.0f);
  float scores[kPerLane];  // times `all`
  float all = 0.0f;
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    const bool known = i * kLanes + lane < experts.count;
    const float logit = known ? value_of_key(keys[i]) : 0.0f;
    const float score = by_softmax ? expf(logit - top) : 1.0f / (expf(-logit) + 1.0f);
    scores[i] = known ? score : 0.0f;
    all += scores[i];
  }
  all = by_softmax ? warp_sum(all) : 1.0f;
  if (routing.chooses_by_score) {
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      const int32_t expert = i * kLanes + lane;
      if (expert >= experts.count) continue;
      const float score = scores[i] / all;
      keys[i] = order_key(routing.choice_bias == nullptr ? score : score + routing.choice_bias[expert]);
    }
  }
  if (routing.group_count > 1) keep_best_groups(experts, keys);
  const uint32_t chosen =
      is_nan ? first_experts<kPerLane>(experts.per_row) : select_topk_experts(keys, experts.per_row);
  float divisor = all;
  if (experts.renormalize) {
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) sum += (chosen >> i & 1u) != 0 ? scores[i] : 0.0f;
    divisor = fmaxf(warp_sum(sum) + routing.sum_epsilon * all, routing.min_sum * all);
  }
  list_choices<kPerLane>(route, row, chosen, [&](int i) {
    if (is_nan) return __uint_as_float(0x7FC00000u);
    const float weight = scores[i] / divisor * routing.scale;
    return routing.expert_scales == nullptr ? weight : weight * routing.expert_scales[i * kLanes + lane];
  });
}

}  // namespace millrace::cuda
