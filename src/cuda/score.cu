#include "cuda/scored_row.cuh"

namespace millrace::cuda {
namespace {

__global__ void __launch_bounds__(kSamplerThreads)
    score_kernel(const float* logits, int64_t stride, int32_t vocab, int32_t rows, const int32_t* targets,
                 const int32_t* top_counts, SampleOutputs outputs, void* workspace) {
  const SamplerSlot slot = slot_at(workspace, static_cast<int32_t>(blockIdx.x), vocab);
  for (auto row = static_cast<int32_t>(blockIdx.x); row < rows; row += static_cast<int32_t>(gridDim.x)) {
    score_row({.logits = logits + row * stride,
               .vocab = vocab,
               .row = row,
               .token = targets[row],
               .top_count = top_counts[row]},
              slot.list, outputs);
  }
}

}  // namespace

void score(cudaStream_t stream, const float* logits, int64_t stride, int32_t vocab, int32_t rows,
           const int32_t* targets, const int32_t* top_counts, const SampleOutputs& outputs, void* workspace) {
  check_sampler("score", vocab, outputs);
  launch<score_kernel>(
      {"score", dim3(rows < kMaxSlots ? rows : kMaxSlots), dim3(kSamplerThreads), sizeof(SamplerShared)}, stream,
      logits, stride, vocab, rows, targets, top_counts, outputs, workspace);
}

}  // namespace millrace::cuda
