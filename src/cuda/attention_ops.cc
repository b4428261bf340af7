#include "cuda/attention_ops.h"

#include "base/check.h"
#include "cuda/kernels.h"
#include "cuda/operands.h"

namespace millrace::cuda {

using tensor::DType;

namespace {

/// Returns the layout of a cache, which must have layer `layer` of such heads.
const DeviceKvCache& heads_in(const tensor::KvCache& cache, const tensor::AttentionShape& shape, int32_t layer) {
  const tensor::KvCacheShape& found = cache.shape();
  CHECK(found.kv_head_count == shape.kv_head_count && found.head_dim == shape.head_dim && layer >= 0 &&
            layer < found.layer_count,
        "layer {} of {} with {} heads of {}, wanted {} of {}", layer, found.layer_count, found.kv_head_count,
        found.head_dim, shape.kv_head_count, shape.head_dim);
  return as_cuda(cache).layout();
}

}  // namespace

void store_heads(Device& device, tensor::Matrix qkv, const tensor::AttentionShape& shape,
                 const tensor::RotaryTable& rotary, const tensor::DeviceVector* q_norm,
                 const tensor::DeviceVector* k_norm, float norm_epsilon, const tensor::UploadedBatch& batch,
                 tensor::KvCache& cache, int32_t layer, tensor::Matrix q) {
  const CudaBatch& uploaded = as_cuda(batch);
  const int32_t kept = shape.queries_only ? 0 : shape.values_are_keys ? 1 : 2;  // keys, values or both
  const int32_t heads = shape.head_count + kept * shape.kv_head_count;
  check_matrix("qkv", qkv, DType::kF32, uploaded.bounds.rows, int64_t{heads} * shape.head_dim);
  check_matrix("q", q, DType::kBF16, qkv.rows, int64_t{shape.head_count} * shape.head_dim);
  CHECK(rotary.rotary_dim % 2 == 0 && rotary.rotary_dim <= shape.head_dim, "{} rotary channels of {}",
        rotary.rotary_dim, shape.head_dim);
  CHECK(shape.queries_only || (q_norm == nullptr) == (k_norm == nullptr), "q and k are normalised both or not at all");
  const bool is_layer = shape.head_norm == tensor::HeadNorm::kLayer;
  const auto is_per_head = [&](const tensor::DeviceVector* norm, int32_t count) {
    return norm == nullptr || norm->size() == int64_t{is_layer ? count : 1} * shape.head_dim;
  };
  CHECK(shape.head_norm != tensor::HeadNorm::kRotatedRms || rotary.attention_factor == 1.0f,
        "a norm after a rotation that scales by {}", rotary.attention_factor);
  if (!is_per_head(q_norm, shape.head_count) || !is_per_head(k_norm, shape.kv_head_count)) {
    CHECK(shape.head_norm == tensor::HeadNorm::kRms, "weights of a norm of each head that have other sizes");
    CHECK(!shape.values_are_keys && !shape.queries_only, "keys that are not alone under a norm over all heads");
    norm_all_heads(device, qkv, *as_cuda(q_norm), *as_cuda(k_norm), norm_epsilon);
    q_norm = k_norm = nullptr;
  }
  const HeadNorms norms{.q = values_of(q_norm),
                        .k = values_of(k_norm),
                        .epsilon = norm_epsilon,
                        .kind = shape.head_norm,
                        .of_values = shape.value_norm,
                        .values_are_keys = shape.values_are_keys,
                        .queries_only = shape.queries_only};
  rotary_store_kv(device.compute.get(), floats(qkv), shape.head_count, rotary_of(rotary), norms, uploaded.device,
                  uploaded.bounds, heads_in(cache, shape, layer), layer, q.data);
}

void attend(Device& device, tensor::Matrix q, const tensor::AttentionShape& shape, const tensor::UploadedBatch& batch,
            const tensor::KvCache& cache, int32_t layer, tensor::Matrix out) {
  const CudaBatch& uploaded = as_cuda(batch);
  check_matrix("q", q, DType::kBF16, uploaded.bounds.rows, int64_t{shape.head_count} * shape.head_dim);
  check_matrix("out", out, DType::kBF16, q.rows, q.cols);
  CHECK(shape.causal || (shape.sliding_window == 0 && shape.chunk_size == 0),
        "a window of {} or chunks of {} without causality", shape.sliding_window, shape.chunk_size);
  CHECK(shape.sliding_window == 0 || shape.chunk_size == 0, "a window of {} in chunks of {}", shape.sliding_window,
        shape.chunk_size);
  CHECK(shape.soft_cap >= 0.0f, "a soft cap of {}", shape.soft_cap);
  CHECK(shape.sinks == nullptr || shape.sinks->size() == shape.head_count, "{} sinks for {} heads", shape.sinks->size(),
        shape.head_count);
  const AttentionSizes sizes{.head_count = shape.head_count,
                             .scale = shape.scale,
                             .sliding_window = shape.sliding_window,
                             .chunk_size = shape.chunk_size,
                             .causal = shape.causal,
                             .soft_cap = shape.soft_cap,
                             .sinks = values_of(shape.sinks)};
  const DeviceKvCache& layout = heads_in(cache, shape, layer);
  std::byte* const scratch =
      device.scratch(device.attention_scratch, attention_workspace_bytes(sizes, layout, uploaded.bounds));
  attention(device.compute.get(), q.data, sizes, uploaded.device, uploaded.bounds, layout, layer, out.data, scratch);
}

}  // namespace millrace::cuda
