#include "cuda/block_sum.cuh"
#include "cuda/states.cuh"

namespace millrace::cuda {
namespace {

constexpr int kThreads = kRowBlockThreads;
/// Columns of a group up to which one warp has it.
constexpr int32_t kWarpGroup = 512;

/// Grid: [rows, blocks of groups]. kOwn threads have a group.
template <int kOwn>
__global__ void __launch_bounds__(kThreads) gated_rms_norm_kernel(GatedNormOperands n, uint16_t* out) {
  constexpr int kGroups = kThreads / kOwn;  // of the block
  const auto row = static_cast<size_t>(blockIdx.x);
  const int own = threadIdx.x / kOwn;
  const int thread = threadIdx.x % kOwn;
  const int32_t first = (static_cast<int32_t>(blockIdx.y) * kGroups + own) * n.group;
  const bool exists = first < n.columns;
  const float* const in = n.in + row * n.columns + first;
  const float* const gates = n.gates + row * n.gate_columns + n.first_gate + first;
  // silu of a gate, or its sigmoid, times x.
  const auto gated = [&](float x, int32_t i) {
    const float gate = gates[i] * n.gate_factor;
    if (n.sigmoid) return times_sigmoid(x, gate);
    return times_sigmoid(gate, gate) * x;
  };
  if (n.weight == nullptr) {
    for (int32_t i = thread; exists && i < n.group; i += kOwn)
      out[row * n.columns + first + i] = float_to_bf16(gated(in[i], i));
    return;
  }
  const float* const weight = n.weight + first % n.weights;
  float squares = 0.0f;
  for (int32_t i = thread; exists && i < n.group; i += kOwn) {
    const float x = n.gate_first ? gated(in[i], i) : in[i];
    squares = fmaf(x, x, squares);
  }
  float sum = 0.0f;
  if constexpr (kOwn > kLanes) {
    sum = block_sum(squares, reinterpret_cast<float*>(shared_memory()));
  } else {
    sum = warp_sum(squares);
  }
  const float inverse = 1.0f / sqrtf(sum / static_cast<float>(n.group) + n.epsilon);
  for (int32_t i = thread; exists && i < n.group; i += kOwn) {
    const float x = n.gate_first ? gated(in[i], i) : in[i];
    const float normed = x * inverse * weight[i];
    out[row * n.columns + first + i] = float_to_bf16(n.gate_first ? normed : gated(normed, i));
  }
}

}  // namespace

void gated_rms_norm(cudaStream_t stream, const GatedNormOperands& norm, int32_t rows, void* out) {
  const int32_t groups = norm.columns / norm.group;
  auto* const to = static_cast<uint16_t*>(out);
  if (norm.group <= kWarpGroup) {
    const int32_t blocks = ceil_div(groups, kThreads / kLanes);
    launch<gated_rms_norm_kernel<kLanes>>({"gated_rms_norm", dim3(rows, blocks), dim3(kThreads)}, stream, norm, to);
    return;
  }
  launch<gated_rms_norm_kernel<kThreads>>({.name = "gated_rms_norm",
                                           .grid = dim3(rows, groups),
                                           .block = dim3(kThreads),
                                           .shared_bytes = kRowBlockWarps * sizeof(float)},
                                          stream, norm, to);
}

}  // namespace millrace::cuda
