#pragma once

#include "cuda/device.h"
#include "tensor/backend.h"

/// The ops of recurrent mixers as Backend has them; private to this folder.
namespace millrace::cuda {

/// A batch, and the layer of a cache that has its states.
struct BatchStates {
  const tensor::UploadedBatch& batch;
  tensor::KvCache& states;
  int32_t layer = 0;
};

/// Implements Backend::causal_conv.
void run_causal_conv(Device& device, tensor::Matrix in, const tensor::ConvShape& shape,
                     const tensor::DeviceVector& weight, const tensor::DeviceVector* bias, const BatchStates& at,
                     tensor::Matrix out);
/// Implements Backend::short_conv.
void run_short_conv(Device& device, tensor::Matrix in, const tensor::ConvShape& shape,
                    const tensor::DeviceVector& weight, const tensor::DeviceVector* bias, const BatchStates& at,
                    tensor::Matrix out);
/// Implements Backend::delta_net.
void run_delta_net(Device& device, const tensor::DeltaNetInputs& in, const tensor::DeltaNetShape& shape,
                   const tensor::DeviceVector& decay, const tensor::DeviceVector& step_bias, const BatchStates& at,
                   tensor::Matrix out);
/// Implements Backend::state_space.
void run_state_space(Device& device, tensor::Matrix mixed, tensor::Matrix steps, const tensor::StateSpaceShape& shape,
                     const tensor::DeviceVector& decay, const tensor::DeviceVector& step_bias,
                     const tensor::DeviceVector& skip, const BatchStates& at, tensor::Matrix out);
/// Implements Backend::gated_rms_norm.
void run_gated_rms_norm(Device& device, tensor::Matrix in, tensor::Matrix gates, int64_t first_gate,
                        const tensor::GatedNorm& norm, tensor::Matrix out);

}  // namespace millrace::cuda
