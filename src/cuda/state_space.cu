#include "cuda/recurrent_state.cuh"

namespace millrace::cuda {

void state_space(cudaStream_t stream, const float* mixed, const float* steps, const tensor::StateSpaceShape& shape,
                 const DeviceStateWeights& weights, const DeviceBatch& batch, const BatchBounds& bounds,
                 const DeviceKvCache& states, int32_t layer, float* out) {
  const auto inner = static_cast<int32_t>(shape.inner_width());
  const auto group_width = static_cast<int32_t>(shape.group_width());
  run_state_rule<StateRule::kSpace>(stream, "state_space",
                                    {.mixed = mixed,
                                     .gates = steps,
                                     .out = out,
                                     .mixed_columns = inner + 2 * group_width,
                                     .heads = shape.head_count,
                                     .heads_per_group = shape.head_count / shape.group_count,
                                     .key_dim = shape.state_dim,
                                     .value_dim = shape.head_dim,
                                     .q_begin = inner + group_width,
                                     .k_begin = inner,
                                     .v_begin = 0,
                                     .min_step = shape.min_step,
                                     .max_step = shape.max_step,
                                     .weights = weights,
                                     .state_begin = shape.state_begin,
                                     .batch = batch,
                                     .states = states,
                                     .layer = layer},
                                    bounds);
}

}  // namespace millrace::cuda
