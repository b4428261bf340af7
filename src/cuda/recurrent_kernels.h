#pragma once

#include "base/ids.h"
#include "cuda/kernels.h"
#include "tensor/recurrence.h"

/// The ops of recurrent mixers on device memory; the rules of kernels.h hold. `states` is a cache of states. A sequence
/// with a prefix continues from the state in the page of its last token, another one from zeros. Its state after the
/// batch's last row that is no draft, and that after the last row of each page before, are stored in their pages. Pages
/// of drafts alone are not looked up. Rows are computed one after the other, so that no bits depend on how a prompt was
/// cut.
namespace millrace::cuda {

/// Stands in a batch's pages where the state after a page's tokens is not kept.
inline constexpr uint32_t kNoStatePage = kNoPage.value();
/// Maximum of tokens that a convolution sees.
inline constexpr int32_t kMaxConvWidth = 8;
/// Maximum of rows of a head's state: key_dim of a delta net, state_dim of a state space.
inline constexpr int32_t kMaxStateRows = 256;

/// The weights of a convolution.
struct DeviceConvolution {
  const float* weight = nullptr;  // [width, channels]
  const float* bias = nullptr;    // [channels]; may be null
  int32_t channels = 0;
  int32_t width = 0;  ///< 2 to kMaxConvWidth
};
/// out (f32) [rows, channels] = silu of the convolution of the first columns of in (f32) [rows, in_columns].
void causal_conv(cudaStream_t stream, const float* in, int32_t in_columns, const DeviceConvolution& convolution,
                 const DeviceBatch& batch, const BatchBounds& bounds, const DeviceKvCache& states, int32_t layer,
                 float* out);
/// out (bf16) [rows, channels] = C · conv(B · x) of in (f32) [rows, B | C | x].
void short_conv(cudaStream_t stream, const float* in, const DeviceConvolution& convolution, const DeviceBatch& batch,
                const BatchBounds& bounds, const DeviceKvCache& states, int32_t layer, void* out);

/// The weights of the heads of a recurrent mixer, [heads] each; step_bias is [heads, key_dim] where channels decay.
struct DeviceStateWeights {
  const float* decay = nullptr;
  const float* step_bias = nullptr;
  const float* skip = nullptr;  ///< of a state space alone
};
/// tensor::DeltaNetInputs on the device.
struct DeviceDeltaInputs {
  const float* mixed = nullptr;
  const float* gates = nullptr;
  const float* channel_steps = nullptr;  ///< null where heads decay as a whole
};
/// Computes Backend::delta_net.
void delta_net(cudaStream_t stream, const DeviceDeltaInputs& in, const tensor::DeltaNetShape& shape,
               const DeviceStateWeights& weights, const DeviceBatch& batch, const BatchBounds& bounds,
               const DeviceKvCache& states, int32_t layer, float* out);
/// Computes Backend::state_space.
void state_space(cudaStream_t stream, const float* mixed, const float* steps, const tensor::StateSpaceShape& shape,
                 const DeviceStateWeights& weights, const DeviceBatch& batch, const BatchBounds& bounds,
                 const DeviceKvCache& states, int32_t layer, float* out);

/// A gated norm's operands: gates (f32) [rows, gate_columns], of which `columns` from first_gate on belong to the rows
/// of `in` (f32) [rows, columns].
struct GatedNormOperands {
  const float* in = nullptr;
  const float* gates = nullptr;
  int32_t gate_columns = 0;
  int32_t first_gate = 0;
  const float* weight = nullptr;  // [weights], or null: gates without a norm
  int32_t weights = 0;            ///< `group`, or `columns`
  int32_t group = 0;              ///< columns that are normalised together
  int32_t columns = 0;
  float epsilon = 0.0f;
  bool gate_first = false;  ///< as tensor::GatedNorm has it
  float gate_factor = 1.0f;
  bool sigmoid = false;
};
/// out (bf16) [rows, columns] = the gated norm.
void gated_rms_norm(cudaStream_t stream, const GatedNormOperands& norm, int32_t rows, void* out);

}  // namespace millrace::cuda
