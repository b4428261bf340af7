#include "cuda/device_routing.h"

namespace millrace::cuda {

DeviceRouting device_routing(const tensor::Routing& routing) {
  return {.is_plain = routing.is_plain_softmax(),
          .chooses_by_score = routing.chooses_by_score(),
          .score = routing.score,
          .group_score = routing.group_score,
          .scale = routing.scale,
          .sum_epsilon = static_cast<float>(routing.sum_epsilon),
          .min_sum = static_cast<float>(routing.min_sum),
          .group_count = routing.group_count,
          .groups_per_row = routing.groups_per_row};
}

}  // namespace millrace::cuda
