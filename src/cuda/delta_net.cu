#include "cuda/recurrent_state.cuh"

namespace millrace::cuda {

void delta_net(cudaStream_t stream, const DeviceDeltaInputs& in, const tensor::DeltaNetShape& shape,
               const DeviceStateWeights& weights, const DeviceBatch& batch, const BatchBounds& bounds,
               const DeviceKvCache& states, int32_t layer, float* out) {
  const auto key_width = static_cast<int32_t>(shape.key_width());
  const StateParams params{.mixed = in.mixed,
                           .gates = in.gates,
                           .channel_steps = in.channel_steps,
                           .out = out,
                           .mixed_columns = 2 * key_width + static_cast<int32_t>(shape.value_width()),
                           .heads = shape.value_head_count,
                           .heads_per_group = shape.value_head_count / shape.key_head_count,
                           .key_dim = shape.key_dim,
                           .value_dim = shape.value_dim,
                           .q_begin = 0,
                           .k_begin = key_width,
                           .v_begin = 2 * key_width,
                           .q_length = 1.0f / sqrtf(static_cast<float>(shape.key_dim)),
                           .weights = weights,
                           .state_begin = shape.state_begin,
                           .batch = batch,
                           .states = states,
                           .layer = layer};
  if (shape.channel_decay) return run_state_rule<StateRule::kChannelDelta>(stream, "delta_net", params, bounds);
  run_state_rule<StateRule::kDelta>(stream, "delta_net", params, bounds);
}

}  // namespace millrace::cuda
